"""Runs a recipe's steps in order: reuses finished ones, handles `--fresh`, skips steps whose inputs are partial, and
lists the partial and skipped steps at the end. A lease on all steps of the run, including finished ones, keeps them
from `datakit gc`. To reuse a finished step, the run reads the step's manifest once. The executor is created when the
first task must run, so a second run of the same recipe starts no worker and ends in well under a second. If a step ends
as partial, the steps that depend on it are skipped and all others run. The run then ends as partial. A run writes its
events to `<root>/<dataset>/runs/<run>/events.jsonl` if it executes a step, if it takes more than 30 seconds, or if it
fails and its dataset already exists.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from datakit.engine.ledger.ledger import driver_name
from datakit.engine.observe.event_file import FILE_NAME as EVENTS
from datakit.engine.observe.event_log import EventLog
from datakit.engine.observe.observer import Observer, ObserverGroup, PeakMemory, RunStart
from datakit.engine.observe.run_report import RunReport
from datakit.engine.ray_backend.agreement import remove_dead_nonces
from datakit.engine.ray_backend.metrics import RayMetrics
from datakit.engine.scheduler.driver import run_step
from datakit.errors import PartialError, RefusedError, RefusedInputsError, messages_of, refuse_all
from datakit.leases.exclusive_removal import remove_unused
from datakit.leases.lease import Lease
from datakit.leases.lease_files import USE
from datakit.leases.pins import refuse_pinned
from datakit.pipeline.before_run.disk_space import check_disk_space
from datakit.pipeline.graph import Graph, LocatedStep, Node, build, changed_code, check_workers, engine_step
from datakit.pipeline.lazy_executor import LazyExecutor
from datakit.pipeline.resolve_sources import ListingOptions, local_folders
from datakit.pipeline.root_layout import require_writable, run_directory, stage_order
from datakit.pipeline.run_summary import RunResult, StepResult
from datakit.pipeline.tolerances import check_tolerances
from datakit.recipe import Recipe
from datakit.storage import stale_files, urls
from datakit.storage.io_errors import unless_read_only
from datakit.storage.latest import Current, record_latest

CONSOLIDATE, TOKENIZE = "consolidate", "tokenize"


def run(
    recipe: Recipe,
    root: str,
    *,
    workers: int | None = None,
    ray: str | None = None,
    until: str | None = None,
    settings: Sequence[str] = (),
    offline: bool = False,
    fresh: bool = False,
    ignore_disk_space: bool = False,
    observer: Observer | None = None,
) -> RunResult:
    """Run a recipe up to and including stage `until`. `settings` are assignments that have already been applied to the
    recipe; they are only recorded in the run's first event.

    With `fresh`, the dataset's own steps that have the current parameters are removed first. The steps of its sources
    are kept, because other recipes may share them. With `ignore_disk_space`, the run starts even if a local disk
    probably has too little free space. Raises InputError, PartialError, StepFailedError or StorageError.
    """
    check_workers(workers)
    root = urls.absolute(root)
    options = {"workers": workers, "ray": ray, "until": until, "settings": list(settings), "offline": offline,
               "fresh": fresh, "directory": os.getcwd()}  # fmt: skip
    start = _run_start(recipe, root, options)
    metrics = [RayMetrics()] if ray is not None else []
    with (
        RunReport(start, observer or Observer(), [EventLog(urls.parent(start.log)), *metrics]) as report,
        Lease(root, USE, f"datakit run {recipe.name}", report.note) as lease,
    ):
        graph = build(recipe, root, ListingOptions(offline=offline), until)
        lease.hold(graph.directories())
        removed = _remove_own_steps(graph, lease, report) if fresh else []
        remove_dead_nonces(root)
        executor = LazyExecutor(workers, ray, root)
        progress = _Run(graph, executor, report, lease, check_disk=not ignore_disk_space)
        try:
            steps = [step for node in graph.nodes if (step := progress.run(node)) is not None]
        finally:
            executor.close()
            progress.tidy_up()
        progress.raise_unfinished()
        lease.require()
        unrecorded = _record_latest(urls.join(root, graph.dataset), steps, recipe)
    return RunResult(
        dataset=graph.dataset,
        root=root,
        steps=tuple(steps),
        cache=next((step.directory for step in steps if step.stage == TOKENIZE), None),
        run=report.run,
        log=report.log,
        seconds=report.seconds(),
        notes=(
            *graph.notes,
            *progress.notes,
            *(f"removed first (--fresh): {directory}" for directory in removed),
            *([unrecorded] if unrecorded else []),
        ),
    )


def _run_start(recipe: Recipe, root: str, options: dict[str, object]) -> RunStart:
    """Return a description of the run for its first event. No source has been listed at this point."""
    run = driver_name()
    log = urls.join(run_directory(root, recipe.name, run), EVENTS)
    return RunStart(run, log, recipe.name, root, recipe.place, recipe.document(), local_folders(recipe), options)


def _record_latest(dataset: str, steps: Sequence[StepResult], recipe: Recipe) -> str:
    """Record the dataset's current step, token cache and consolidate step, and the licenses of the recipe's sources.
    The current step is the run's last step that belongs to the dataset (not to a source). Return a message for the user
    if nothing could be recorded, and otherwise "".
    """
    own = [step for step in steps if step.source is None]
    if not own:
        return ""
    last = max(own, key=lambda step: stage_order(step.stage))
    cache = [step for step in own if step.stage == TOKENIZE]
    licenses = {source.name: source.license for source in recipe.sources if source.license}
    documents = [step for step in own if step.stage == CONSOLIDATE and step is not last]
    cached, published = (_current(steps[0]) if steps else None for steps in (cache, documents))
    return record_latest(dataset, _current(last), cached, licenses, published)


def _current(step: StepResult) -> Current:
    return Current(urls.name(step.directory), step.manifest.identity)


def _remove_own_steps(graph: Graph, lease: Lease, report: RunReport) -> list[str]:
    """Remove the dataset's own steps (not the shared steps of its sources), and return their directories. Raises
    UsageError if one of them is pinned, and RetentionError if another process uses one; in both cases, nothing is
    removed.
    """
    located: dict[str, LocatedStep] = {}
    for node in graph.nodes:
        located[node.label] = graph.locate(node, located)
    own = [step.directory for step in located.values() if step.node.source is None and urls.listing(step.directory)]
    refuse_pinned(graph.root, own)
    remove_unused(lease, own, f"datakit run {graph.dataset} --fresh", report.note)
    return own


def _of_source(node: Node, error: RefusedError) -> RefusedError:
    """Return an error like `error`, but with the name of the source in every message, because files of two sources may
    share a name.
    """
    named = [text if text.startswith("source ") else f"{node.source}: {text}" for text in messages_of([error])]
    return RefusedInputsError(named, getattr(error, "listed", ""))


@dataclass
class _Run:
    """Runs the nodes of a graph, one after another."""

    graph: Graph
    executor: LazyExecutor
    report: RunReport
    lease: Lease
    check_disk: bool = True
    notes: list[str] = field(default_factory=list)
    _done: dict[str, LocatedStep] = field(default_factory=dict)
    _unfinished: dict[str, str] = field(default_factory=dict)  # label -> message, which names the step
    _refused: list[tuple[Node, RefusedError]] = field(default_factory=list)
    _started: str | None = None  # the directory of a step that has not ended

    def run(self, node: Node) -> StepResult | None:
        """Run or reuse the node's step. Return the step's result, or None if the step was skipped, refused an input, or
        ended as partial.
        """
        if self._refused and self._refused[0][0].stage != node.stage:
            return None
        missing = [above.label for above in node.upstream if above.label in self._unfinished]
        if missing:
            self._unfinished[node.label] = f"{node.label}: not run: it needs {', '.join(missing)}"
            return None
        try:
            result = self._run_step(node)
        except PartialError as error:
            self._unfinished[node.label] = str(error)
            return None
        except RefusedError as error:  # the same stage may refuse other sources, too; report all together
            self._refused.append((node, error))
            self._unfinished[node.label] = f"{node.label}: some of its inputs cannot be used"
            return None
        check_tolerances(node, result.directory, result.manifest)
        return result

    def _run_step(self, node: Node) -> StepResult:
        started = time.monotonic()
        self.lease.hold([self.graph.directory(node, self._done)])
        located = self.graph.locate(node, self._done)
        reused, memory = located.manifest is not None, PeakMemory()
        if not reused:
            require_writable(self.graph.root)
            self.report.begin()
            self.lease.begin()
        if self.check_disk and not reused:
            check_disk_space(self.graph, self._done, self.executor.workers, self.executor.ray is not None)
            self.check_disk = False
        step = replace(engine_step(located, self._done), limits=self.graph.limits)
        observer = ObserverGroup([self.report.observer, memory])
        for earlier in located.earlier:
            observer.note(earlier.message(node.label))
        if changed := changed_code(located):
            self.notes.append(changed) if reused else observer.note(changed)
        self._started = step.directory
        manifest = run_step(step, node.module.plan(step), self.executor.get, observer, self.report.start.run)
        self._started = None
        self._done[node.label] = replace(located, manifest=manifest)
        seconds = time.monotonic() - started
        return StepResult(
            node.stage, node.source, located.directory, manifest, reused, seconds, memory.peak, memory.budget
        )

    def tidy_up(self) -> None:
        """Remove the temporary files of the step that was stopped, if any. All tasks must have ended."""
        if self._started is not None:
            with unless_read_only():
                stale_files.remove_dead_files(self._started)

    def raise_unfinished(self) -> None:
        """Raise RefusedError if a step has inputs that cannot be used; otherwise, raise PartialError if a step ended as
        partial or was skipped.
        """
        refuse_all([error if len(self._refused) == 1 else _of_source(node, error) for node, error in self._refused])
        if self._unfinished:
            lines = "\n".join(self._unfinished.values())
            raise PartialError(f"{self.graph.dataset} is partial\n{lines}")
