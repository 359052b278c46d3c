"""Runs the steps of a graph: reuses those that are finished, and opens the others as soon as their inputs are ready.

Steps that do not depend on each other run at the same time, over one pool of slots and memory
(`engine/scheduler/run_loop.py`). `estimates/priorities.py` decides which of them gets a free slot. If a step fails or
ends as partial, the steps that depend on it are not run, and all other steps are; `unfinished_steps.py` decides how the
run ends.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from types import ModuleType

from datakit.download.hashes import hash_folder
from datakit.engine.observe.observer import ObserverGroup, PeakMemory
from datakit.engine.observe.run_report import RunReport
from datakit.engine.scheduler.driver import open_step, reuse_step
from datakit.engine.scheduler.run_loop import Ended, RunLoop
from datakit.engine.task import Step
from datakit.errors import DatakitError, NoSpaceError, RootError
from datakit.leases.lease import Lease
from datakit.pipeline.before_run.disk_space import check_disk_space
from datakit.pipeline.estimates.priorities import priorities
from datakit.pipeline.graph import Graph, LocatedStep, Node, changed_code, engine_step
from datakit.pipeline.lazy_executor import LazyExecutor
from datakit.pipeline.root_layout import require_writable
from datakit.pipeline.run_summary import StepResult
from datakit.pipeline.schedule.unfinished_steps import UnfinishedSteps
from datakit.pipeline.tolerances import check_tolerances
from datakit.storage import stale_files, urls
from datakit.storage.io_errors import unless_read_only
from datakit.storage.manifest import Manifest


@dataclass
class _Opened:
    """An open step. started: the time of its start, by the monotonic clock."""

    located: LocatedStep
    memory: PeakMemory = field(default_factory=PeakMemory)
    started: float = field(default_factory=time.monotonic)


class GraphRun:
    """One run of a graph. notes: messages for the user about finished steps."""

    def __init__(
        self, graph: Graph, executor: LazyExecutor, report: RunReport, lease: Lease, *, check_disk: bool = True
    ) -> None:
        self.notes: list[str] = []
        self._graph, self._executor, self._report, self._lease = graph, executor, report, lease
        self._check_disk = check_disk
        self._priorities = priorities(graph)
        self._readers: dict[str, list[Node]] = {node.label: [] for node in graph.nodes}
        self._missing = {node.label: {above.label for above in node.upstream} for node in graph.nodes}
        for node in graph.nodes:
            for above in self._missing[node.label]:
                self._readers[above].append(node)
        # Nodes whose inputs are done but which have not been looked up yet.
        self._unlocated = deque(node for node in graph.nodes if not node.upstream)
        self._ready: dict[str, LocatedStep] = {}  # unfinished steps whose inputs are ready, most urgent first
        self._opened: dict[str, _Opened] = {}  # by directory
        self._done: dict[str, LocatedStep] = {}
        self._results: dict[str, StepResult] = {}
        self._unfinished = UnfinishedSteps(graph.dataset, graph.nodes)
        self._began = time.monotonic()

    def run(self) -> list[StepResult]:
        """Run or reuse every step that can be finished, and return these steps in the graph's order. Raises errors that
        concern the whole run. After this, call `raise_unfinished`, which raises the errors of failed steps.
        """
        loop = RunLoop(self._executor.get, lambda: self._report.observer)
        try:
            self._look_for_ready()
            while self._open(loop) or len(loop):
                ended = loop.turn()
                for one in ended:
                    self._settle(one)
                if ended:
                    self._look_for_ready()
        except BaseException as error:
            loop.stop(error)
            raise
        return [self._results[node.label] for node in self._graph.nodes if node.label in self._results]

    def tidy_up(self) -> None:
        """Remove the temporary files of steps that were stopped, and those of drivers that were killed while they wrote
        cached hashes or the list of current steps. All tasks must have ended.
        """
        for directory in self._opened:
            with unless_read_only():
                stale_files.remove_dead_files(directory)
        for folder in (hash_folder(self._graph.root), urls.join(self._graph.root, self._graph.dataset)):
            with unless_read_only():
                stale_files.remove_dead_files_in(folder)

    def raise_unfinished(self) -> None:
        """Raise an error if a step has failed, ended as partial or could not run."""
        made = [self._done[label].node for label, one in self._results.items() if not one.reused]
        self._unfinished.raise_error(made, self._done)

    def _look_for_ready(self) -> None:
        """Locate the steps whose inputs have become ready, and reuse those that are finished."""
        if not self._unlocated:
            return
        while self._unlocated:
            self._locate(self._unlocated.popleft())
        self._ready = dict(sorted(self._ready.items(), key=lambda item: self._priorities[item[0]]))

    def _locate(self, node: Node) -> None:
        started = time.monotonic()
        self._lease.hold([self._graph.directory(node, self._done)])
        try:
            located = self._graph.locate(node, self._done)
            changed = changed_code(located)
        except (NoSpaceError, RootError):  # these concern every step
            raise
        except DatakitError as error:  # a damaged manifest, for example
            self._fail(node, error)
            return
        if located.manifest is None:
            self._ready[node.label] = located
            return
        if changed:
            self.notes.append(changed)
        self._reuse(located, started)

    def _reuse(self, located: LocatedStep, started: float) -> bool:
        """Reuse a step if it is finished. Return False if it is not."""
        manifest = reuse_step(self._engine_step(located), self._report.observer, located.manifest)
        if manifest is None:
            return False
        self._finish(located, manifest, StepResult(
            located.node.stage, located.node.source, located.directory, manifest, True, time.monotonic() - started,
            began=started - self._began,
        ))  # fmt: skip
        return True

    def _engine_step(self, located: LocatedStep) -> Step:
        return replace(engine_step(located, self._done), limits=self._graph.limits)

    def _open(self, loop: RunLoop) -> bool:
        """Open ready steps in order of priority, as long as they would soon get slots. Return True if any step is ready
        or open.
        """
        for label in list(self._ready):
            if not loop.has_room(self._priorities[label]):
                break
            self._start(self._ready.pop(label), loop)
        return bool(self._ready or self._opened)

    def _start(self, located: LocatedStep, loop: RunLoop) -> None:
        node, started = located.node, time.monotonic()
        if self._reuse(located, started):  # another run has finished it meanwhile
            self._look_for_ready()
            return
        require_writable(self._graph.root)
        self._report.begin()
        self._lease.begin()
        if self._check_disk:
            workers, cluster = self._executor.workers, self._executor.ray is not None
            check_disk_space(self._graph, self._done, workers, cluster, self._unfinished.failed)
            self._check_disk = False
        opened = _Opened(located, started=started)
        observer = ObserverGroup([self._report.observer, opened.memory])
        for message in (*(earlier.message(node.label) for earlier in located.earlier), changed_code(located)):
            if message:
                observer.note(message)
        step = self._engine_step(located)
        self._opened[step.directory] = opened
        self._executor.prepare(self._soon(node))
        loop.add(
            open_step(step, node.module.plan(step), observer, self._report.start.run), self._priorities[node.label]
        )

    def _soon(self, node: Node) -> list[ModuleType]:
        """Return the stages whose tasks will run next: that of the node, and those of steps that wait for it."""
        return [node.module, *(reader.module for reader in self._readers[node.label])]

    def _settle(self, ended: Ended) -> None:
        opened = self._opened.pop(ended.step.directory)
        located, memory = opened.located, opened.memory
        node = located.node
        if ended.error is not None:
            self._fail(node, ended.error)
            return
        assert ended.manifest is not None
        seconds = time.monotonic() - opened.started
        self._finish(located, ended.manifest, StepResult(
            node.stage, node.source, located.directory, ended.manifest, False, seconds, memory.peak, memory.budget,
            began=opened.started - self._began,
        ))  # fmt: skip

    def _finish(self, located: LocatedStep, manifest: Manifest, result: StepResult) -> None:
        node = located.node
        try:
            check_tolerances(node, result.directory, manifest)
        except DatakitError as error:
            self._fail(node, error)
            return
        self._done[node.label] = replace(located, manifest=manifest)
        self._results[node.label] = result
        for reader in self._readers[node.label]:
            self._missing[reader.label].remove(node.label)
            if not self._missing[reader.label]:
                self._unlocated.append(reader)

    def _fail(self, node: Node, error: DatakitError) -> None:
        self._unfinished.fail(node, error)
        if self._opened or self._ready or self._unlocated:
            first = str(error).partition("\n")[0]
            self._report.observer.note(f"{node.label} failed (steps that do not depend on it continue): {first}")
