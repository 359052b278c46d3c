"""Runs a recipe: its steps in order, each found done or run, and what they kept.

A step that is done costs one read of its manifest, so a second run of the same recipe ends in well under a second, and
starts no worker: the executor is made when the first task must run. Where a step ends partial, what depends on it stays
off, everything else goes on, and the run ends partial with the names.

Each run that runs anything writes its events to `<root>/<dataset>/runs/<run>/events.jsonl`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from datakit.engine.observe.event_log import EventLog
from datakit.engine.observe.observer import Observer, ObserverGroup, PeakMemory, SilentObserver
from datakit.engine.quarantine import unlisted
from datakit.engine.ray_backend.agreement import remove_dead_nonces
from datakit.engine.ray_backend.metrics import RayMetrics
from datakit.engine.scheduler.driver import RunOptions, run_step
from datakit.engine.scheduler.finish import read_quarantine
from datakit.engine.task import Tolerance
from datakit.errors import InputError, PartialError
from datakit.pipeline.graph import Graph, Located, Node, build, check_workers, finished, locate, step_of
from datakit.pipeline.lazy_executor import LazyExecutor
from datakit.pipeline.root_layout import run_directory
from datakit.pipeline.sources import Look
from datakit.recipe import Recipe
from datakit.storage import urls
from datakit.storage.manifest import Manifest

TOKENIZE = "tokenize"


@dataclass(frozen=True)
class StepResult:
    """A step that is done. `seconds` is what this run spent on it; `reused`: it was done before.

    peak_memory, budget: of the attempt that came nearest to its budget, in bytes; 0 where nothing was run.
    """

    stage: str
    source: str | None
    directory: str
    manifest: Manifest
    reused: bool
    seconds: float
    peak_memory: int = 0
    budget: int = 0

    @property
    def label(self) -> str:
        """How people call it: `normalize novels`, `dedup`."""
        return f"{self.stage} {self.source}" if self.source else self.stage


@dataclass(frozen=True)
class RunResult:
    """A run that is done. `cache` is the token cache's directory, where the recipe makes one."""

    dataset: str
    root: str
    steps: tuple[StepResult, ...]
    cache: str | None
    log: str | None
    seconds: float
    notes: tuple[str, ...] = ()

    def steps_of(self, stage: str) -> list[StepResult]:
        """The steps of a stage, in the order of the recipe's sources."""
        return [step for step in self.steps if step.stage == stage]

    @property
    def reused(self) -> bool:
        """Whether everything had been done before."""
        return all(step.reused for step in self.steps)


def run(
    recipe: Recipe,
    root: str,
    *,
    workers: int | None = None,
    ray: str | None = None,
    until: str | None = None,
    offline: bool = False,
    fresh: bool = False,
    observer: Observer | None = None,
) -> RunResult:
    """Run a recipe up to and with stage `until`. Raises InputError, PartialError, StepFailedError, StorageError.

    `fresh` first removes the directories of this recipe's own steps, as its parameters are now; those of its sources
    are shared with other recipes and stay.
    """
    started = time.monotonic()
    check_workers(workers)
    root = urls.absolute(root)
    graph = build(recipe, Look(root, offline=offline), until)
    removed = remove_own_steps(graph) if fresh else []
    remove_dead_nonces(root)
    executor = LazyExecutor(workers, ray, root)
    run_of_graph = _Run(graph, executor, observer or SilentObserver())
    try:
        steps = [step for node in graph.nodes if (step := run_of_graph.run(node)) is not None]
    finally:
        executor.close()
    run_of_graph.raise_partial()
    notes = (*graph.notes, *(f"removed first (--fresh): {directory}" for directory in removed))
    cache = next((step.directory for step in steps if step.stage == TOKENIZE), None)
    seconds = time.monotonic() - started
    return RunResult(recipe.name, root, tuple(steps), cache, run_of_graph.log, seconds, notes)


def remove_own_steps(graph: Graph) -> list[str]:
    """Remove the directories of the recipe's own steps, and say which; those of its sources are shared and stay."""
    located: dict[str, Located] = {}
    for node in graph.nodes:
        located[node.label] = locate(node, located)
    own = [entry.directory for entry in located.values() if entry.node.source is None]
    own = [directory for directory in own if urls.listing(directory)]
    for directory in own:
        urls.remove_tree(directory)
    return own


@dataclass
class _Run:
    """One run of a graph, node by node."""

    graph: Graph
    executor: LazyExecutor
    user_observer: Observer
    options: RunOptions = field(default_factory=RunOptions)
    log: str | None = None
    _done: dict[str, Located] = field(default_factory=dict)
    _off: dict[str, str] = field(default_factory=dict)  # label -> why the step did not end
    _observer: Observer | None = None

    def run(self, node: Node) -> StepResult | None:
        """The step's result; None where it is off or ended partial."""
        missing = [label for _, label in node.upstream if label in self._off]
        if missing:
            self._off[node.label] = f"not run: it needs {', '.join(missing)}"
            return None
        started = time.monotonic()
        located = locate(node, self._done)
        step, reused = step_of(located, self._done), located.manifest is not None
        try:
            observer = ObserverGroup([self._observer_for(reused), memory := PeakMemory()])
            manifest = run_step(step, node.plan(step), self.executor.get, self.options, observer)
        except PartialError as error:
            self._off[node.label] = str(error)
            return None
        _check_tolerances(node, located.directory, manifest)
        self._done[node.label] = finished(located, manifest)
        seconds = time.monotonic() - started
        return StepResult(
            node.stage, node.source, located.directory, manifest, reused, seconds, memory.peak, memory.budget
        )

    def _observer_for(self, reused: bool) -> Observer:
        """The caller's observer; and the event log, from the first step on that must be run."""
        if self._observer is None and not reused:
            directory = run_directory(self.graph.root, self.graph.recipe.name, self.options.driver)
            log = EventLog(directory)
            metrics = [RayMetrics()] if self.executor.ray is not None else []
            self._observer, self.log = ObserverGroup([self.user_observer, log, *metrics]), log.url
        return self._observer or self.user_observer

    def raise_partial(self) -> None:
        """Raises PartialError if any step ended without a manifest."""
        if self._off:
            lines = "\n".join(f"{label}: {why}" for label, why in self._off.items())
            raise PartialError(f"{self.graph.recipe.name} is partial\n{lines}")


def _came_in(manifest: Manifest) -> int:
    """How many records a step read."""
    counts = [count for name, count in manifest.counters.items() if name.endswith(("/records_in", "/documents"))]
    return max(counts, default=manifest.totals.rows)


def _check_tolerances(node: Node, directory: str, manifest: Manifest) -> None:
    """Refuse a step that was done under a looser limit than this recipe sets: tolerances are in no fingerprint.

    Asked of each step, not only of those that were done before: another driver may have finished it under our hands.
    """
    limits = node.operations
    tolerance = Tolerance.of(limits)
    records = unlisted(read_quarantine(directory), tolerance) if manifest.quarantine.records else 0
    if records > tolerance.allowed(_came_in(manifest)):
        raise InputError(
            f"{node.label}: {records} records are in quarantine ({directory}/{manifest.quarantine.path}), and this "
            f"recipe allows max_quarantined = {tolerance.limit}; mend or exclude the files that they name, "
            f"or raise the limit"
        )
    rates = {name: counts["rate"] for name, counts in manifest.details.get("sources", {}).items() if "rate" in counts}
    share, name = max(((rate, name) for name, rate in rates.items()), default=(0.0, ""))
    if "max_removal" in limits and share > limits["max_removal"]:
        raise InputError(
            f"{node.label}: source {name!r} loses {share:.1%} of its documents ({directory}), and this recipe allows "
            f"max_removal = {limits['max_removal']:g}; look at its attribute files, then raise the limit if they are "
            "right"
        )
