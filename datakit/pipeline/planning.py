"""Plans a run without executing it: each step's state, inputs, tasks and sizes, and the peak disk use. Writes nothing.
If a step's inputs are done, the stage itself yields the tasks of its first phase, so their number and memory are exact.
For other steps, both are unknown. The sizes of unfinished steps are estimated from the text that will reach them. The
files of a local source are already in place, so its normalize step is planned as if its download step were done, even
if no run has listed the source yet.
Planning lists the sources, and hashes local files whose hashes are not stored in the root yet, because step names
depend on the content of the files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from datakit.engine.task import Phase, Step, input_references
from datakit.errors import counted
from datakit.normalize import stage as normalize
from datakit.normalize.inspection.described import selections
from datakit.normalize.inspection.first_records import missing_columns
from datakit.passages import stage as passages
from datakit.passages.config import SearchConfig
from datakit.passages.exchange_sizes import exchange_share
from datakit.pipeline import estimate
from datakit.pipeline.annotators.model_files import require_models
from datakit.pipeline.annotators.model_servers import ServerRequests, planned_requests
from datakit.pipeline.configuration.tokenizer_file import PATH
from datakit.pipeline.earlier_steps import EarlierStep
from datakit.pipeline.estimate import Concurrency, Resources
from datakit.pipeline.estimates.forecast import Forecast, Work, forecast, tasks_of
from datakit.pipeline.estimates.priorities import priorities
from datakit.pipeline.graph import Graph, LocatedStep, Node, build, changed_code, check_workers, engine_step
from datakit.pipeline.resolve_sources import ListingOptions
from datakit.recipe import Recipe
from datakit.storage import urls
from datakit.storage.fingerprint import config_of
from datakit.storage.manifest import PARTIAL_NAME, Manifest, Quarantine, totals_of

DONE, PARTIAL, TO_RUN = "done", "partial", "to run"
TEXT_STAGES = ("download", "normalize", "consolidate")  # stages whose output is text


@dataclass(frozen=True)
class PlannedStep:
    """A step of a plan. Sizes are in bytes, or None if unknown. `settled` means that all inputs are done, so the
    directory is final. Otherwise, the directory will change if records are quarantined in an input, because that
    changes the input's identity. `disk` is the space that remains in use when the step is done, and `disk_peak` is the
    space that the step needs while it runs. `earlier` lists the steps that this step replaces: finished or unfinished
    steps of earlier versions of datakit.
    """

    stage: str
    source: str | None
    state: str
    directory: str
    fingerprint: str
    settled: bool
    reads: tuple[str, ...]
    rows: int | None
    text_bytes: int | None
    tasks: int | None
    task_memory: int | None
    at_a_time: int | None
    reason: str
    disk: int | None
    disk_peak: int | None
    earlier: tuple[EarlierStep, ...]


@dataclass(frozen=True)
class RunPlan:
    """The steps of a recipe, each after the steps that it reads, and the resources that the run may use. notes:
    messages for the user. forecast: the estimated time and utilisation; None if nothing is left to run or if the size
    of a step is unknown. requests: what would be sent to model servers.
    """

    dataset: str
    root: str
    steps: tuple[PlannedStep, ...]
    resources: Resources
    notes: tuple[str, ...]
    forecast: Forecast | None = None
    requests: tuple[ServerRequests, ...] = ()

    def __repr__(self) -> str:
        states = Counter(step.state for step in self.steps)
        steps = ", ".join(f"{count} {state}" for state, count in states.items())
        return f"RunPlan({self.dataset!r} in {self.root!r}: {counted(len(self.steps), 'step')}, {steps})"

    @property
    def disk_needed(self) -> int | None:
        """The estimated peak of additional disk use during the run, or None if a size is unknown."""
        left = [step for step in self.steps if step.state != DONE]
        uses = [_disk_use(step.stage, (step.disk, step.disk_peak), step.tasks, step.text_bytes) for step in left]
        return estimate.peak(uses, self.resources.workers)


def plan(
    recipe: Recipe, root: str, *, workers: int | None = None, until: str | None = None, offline: bool = False
) -> RunPlan:
    """Return a plan of what `run` would do with the same arguments. Raises InputError for unusable input."""
    check_workers(workers)
    root = urls.absolute(root)
    graph = build(recipe, root, ListingOptions(offline=offline, dry_run=True), until)
    graph = require_models(graph, recipe.place, frozen=True)
    available = estimate.resources(root, workers)
    planner = _Planner(graph, available)
    steps = tuple(planner.plan(node) for node in graph.nodes)
    located = [planner.locate(node)[0] for node in graph.nodes]
    notes = [*graph.notes, *filter(None, map(changed_code, located))]
    notes += [note for step in located if step.manifest is None for note in _missing_columns(step.node)]
    times = _forecast(graph, steps, available.workers)
    requests = planned_requests(graph, {step.node.label: step for step in located})
    return RunPlan(recipe.name, root, steps, available, tuple(notes), times, requests)


def _forecast(graph: Graph, steps: Sequence[PlannedStep], slots: int) -> Forecast | None:
    """Return estimates for the unfinished steps, or None if there are none or a size is unknown."""
    left = {node.label: (node, step) for node, step in zip(graph.nodes, steps, strict=True) if step.state != DONE}
    if not left or any(step.text_bytes is None for _, step in left.values()):
        return None
    works, order = [], priorities(graph)
    for label in sorted(left, key=lambda label: order[label]):
        node, step = left[label]
        needs = tuple(above.label for above in node.upstream if above.label in left)
        text = step.text_bytes or 0
        seconds = estimate.work_seconds(node.stage, text)
        works.append(Work(label, seconds, tasks_of(step.tasks, text), needs))
    return forecast(works, slots)


def _missing_columns(node: Node) -> Iterator[str]:
    state = node.upstream[0].state if node.stage == normalize.NAME else None
    if state is not None and state.files:
        config = config_of(node.settings.content, normalize.Config)
        yield from missing_columns(state.name, state.base, state.files[0].path, config)


@dataclass(frozen=True)
class Remaining:
    """The steps of a run that are not done. stages: their stages. disk: the peak of additional disk use, in bytes.
    text: the number of bytes of text that the step with the most text produces or processes. A size is None if it is
    unknown.
    """

    stages: frozenset[str]
    disk: int | None
    text: int | None


def remaining(
    graph: Graph, done: Mapping[str, LocatedStep], workers: int | None = None, failed: Collection[str] = ()
) -> Remaining:
    """Return an estimate for the steps of a run that are not done. done: the steps located so far, by label. failed:
    the labels of steps that have failed; they and the steps that need them will not run.
    """
    available, left_out = estimate.resources(graph.root, workers), set(failed)
    planner, left = _Planner(graph, available, dict(done)), list[tuple[LocatedStep, int | None]]()
    for node in graph.nodes:
        if node.label in left_out or any(above.label in left_out for above in node.upstream):
            left_out.add(node.label)
            continue
        located, text = planner.locate(node)
        if located.manifest is None:
            left.append((located, text))
    texts = [text for _, text in left if text is not None]
    most = max(texts, default=0) if len(texts) == len(left) else None
    uses = [_disk_use(step.node.stage, _disk(step, text), None, text) for step, text in left]
    return Remaining(frozenset(step.node.stage for step, _ in left), estimate.peak(uses, available.workers), most)


@dataclass
class _Planner:
    """Plans the nodes of a graph one by one, upstream nodes first."""

    graph: Graph
    available: Resources
    _located: dict[str, LocatedStep] = field(default_factory=dict)
    _text_bytes: dict[str, int | None] = field(default_factory=dict)

    def plan(self, node: Node) -> PlannedStep:
        (located, text), phase = self.locate(node), None
        if located.manifest is None and located.settled and _is_listed(node):
            phase, manifest = _first_phase(engine_step(located, self._located), node)
            if manifest is not None:  # nothing to run, so plan downstream steps as if this step were done
                self._located[node.label] = replace(located, manifest=manifest)
        return _planned(located, text, _concurrency(located, phase, self.available))

    def locate(self, node: Node) -> tuple[LocatedStep, int | None]:
        """Return the node's step, and the number of bytes of text that it produces or processes."""
        located = self._located.get(node.label) or self.graph.locate(node, self._located)
        self._located[node.label] = located
        self._text_bytes[node.label] = text = self._text(located)
        return located, text

    def _text(self, located: LocatedStep) -> int | None:
        """Return the number of bytes of text that the step produces (TEXT_STAGES) or processes (other stages)."""
        if located.manifest is not None and (exact := estimate.manifest_text_bytes(located.manifest)) is not None:
            return exact
        known = [step.text_bytes for step in located.earlier if step.finished and located.node.stage in TEXT_STAGES]
        if known and known[-1] is not None:
            return known[-1]
        state = located.node.state
        if state is not None:
            return estimate.raw_text_bytes(state.files) if state.files is not None else None
        above = [self._text_bytes[node.label] for node in located.node.upstream if node.stage in TEXT_STAGES]
        return None if None in above else sum(size for size in above if size is not None)


def _is_listed(node: Node) -> bool:
    return node.state is None or node.state.files is not None


def _first_phase(step: Step, node: Node) -> tuple[Phase | None, Manifest | None]:
    """Return the first phase that the stage's plan yields or, if it yields none, the manifest that the step
    would get.
    """
    generator = node.module.plan(step)
    try:
        return next(generator), None
    except StopIteration as stop:
        output = stop.value
        return None, Manifest(
            step.stage, step.dataset, step.fingerprint, step.fingerprint, step.parameters, input_references(step), [],
            output.partitions, totals_of(output.partitions), output.counters, Quarantine(0),
        )  # fmt: skip
    finally:
        generator.close()


def _planned(located: LocatedStep, text: int | None, concurrency: Concurrency) -> PlannedStep:
    node, manifest = located.node, located.manifest
    disk, disk_peak = _disk(located, text)
    return PlannedStep(
        stage=node.stage, source=node.source, state=_state(located), directory=located.directory,
        fingerprint=located.fingerprint, settled=located.settled,
        reads=(*(above.label for above in node.upstream), *_selections(node)) if node.upstream else _reads(node),
        rows=manifest.totals.rows if manifest is not None else None, text_bytes=text, tasks=concurrency.tasks,
        task_memory=concurrency.task_memory, at_a_time=concurrency.at_a_time, reason=concurrency.reason,
        disk=disk, disk_peak=disk_peak, earlier=located.earlier,
    )  # fmt: skip


def _reads(node: Node) -> tuple[str, ...]:
    """Return what a step without upstream steps reads: the files of a source or, for the contract, a tokenizer."""
    if node.state is None:
        return (node.settings.operations.get(PATH) or node.settings.content["tokenizer"],)
    files = node.state.files
    if files is None:
        return (node.state.base,)
    return (f"{node.state.base}: {counted(len(files), 'file')}, {counted(sum(file.size for file in files), 'byte')}",)


def _selections(node: Node) -> Iterator[str]:
    """Yield what a source's settings select. Raises RecipeError or NoInputError for splits that fit no files."""
    state = node.upstream[0].state if node.stage == normalize.NAME else None
    if state is not None:
        paths = None if state.files is None else [file.path for file in state.files]
        yield from selections(state.name, config_of(node.settings.content, normalize.Config), paths)


def _state(located: LocatedStep) -> str:
    if located.manifest is not None:
        return DONE
    return PARTIAL if urls.exists(urls.join(located.directory, PARTIAL_NAME)) else TO_RUN


def _disk(located: LocatedStep, text: int | None) -> tuple[int | None, int | None]:
    if located.manifest is not None:
        return located.manifest.totals.bytes, located.manifest.totals.bytes
    state = located.node.state
    if state is None:
        if text is None:
            return None, None
        node = located.node
        share = _passages_share(node) if node.stage == passages.NAME else None
        (stays, peak), written = estimate.disk_bytes(node.stage, text, share), _written(located)
        return max(0, stays - written), max(0, peak - written)
    if urls.is_local(state.base):
        return 0, 0  # read in place
    size = sum(file.size for file in state.files) if state.files is not None else None
    return size, size


def _passages_share(node: Node) -> float:
    searches = msgspec.convert(node.settings.content[passages.SEARCHES], dict[str, SearchConfig])
    return exchange_share(searches.values())


def _disk_use(
    stage: str, disk: tuple[int | None, int | None], tasks: int | None, text_bytes: int | None
) -> estimate.DiskUse:
    return estimate.DiskUse(stage, *disk, tasks_of(tasks, text_bytes or 0))


def _written(located: LocatedStep) -> int:
    """Return how many bytes an unfinished step has already written to a local root."""
    return sum(file.size for file in urls.listing(located.directory)) if urls.is_local(located.directory) else 0


def _concurrency(located: LocatedStep, phase: Phase | None, available: Resources) -> Concurrency:
    if located.manifest is not None:
        return Concurrency(None, None, None, "already done: no worker is started")
    if phase is not None:
        return estimate.concurrency_of(phase, available)
    if not _is_listed(located.node):
        return Concurrency(None, None, None, "known once its files are listed")
    if not located.settled:
        return Concurrency(None, None, None, "known once its inputs are done")
    return Concurrency(0, 0, 0, "nothing to run: the files are read in place")
