"""What a run would do, and what it would need: computed from listings and manifests, writing nothing.

For a step whose inputs are done the stage itself says its first tasks, so their number and memory are exact; for the
others sizes are estimated from the text that will reach them. A local source that was never listed by a run is in
place already, so its normalize step counts as one whose inputs are done.

Cost: the sources are listed, and local files that the root does not remember are hashed, since a step's name depends on
their content.
"""

from __future__ import annotations

from dataclasses import dataclass

from datakit.engine.task import Phase, Step, input_references
from datakit.pipeline.estimate import Resources, disk_bytes, manifest_text_bytes, raw_text_bytes, resources
from datakit.pipeline.graph import Graph, Located, Node, build, check_workers, locate, step_of
from datakit.pipeline.sources import Look
from datakit.recipe import Recipe
from datakit.storage import urls
from datakit.storage.manifest import PARTIAL_NAME, Manifest, Quarantine, totals_of

DONE, PARTIAL, TO_RUN = "done", "partial", "to run"


@dataclass(frozen=True)
class PlannedStep:
    """A step of a plan; sizes in bytes, None where nothing is known yet.

    settled: its inputs are done, so its directory is final; else it moves if one of them loses records.
    disk: what stays when it is done; disk_peak: what it needs while it runs.
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


@dataclass(frozen=True)
class RunPlan:
    """The steps of a recipe in the order in which they would run, and what the run may use."""

    dataset: str
    root: str
    steps: tuple[PlannedStep, ...]
    resources: Resources
    notes: tuple[str, ...]

    @property
    def disk_needed(self) -> int | None:
        """The most that the run will have on disk beside what is there, about; None where a size is unknown."""
        stays = peak = 0
        for step in self.steps:
            if step.state == DONE:
                continue
            if step.disk is None or step.disk_peak is None:
                return None
            peak = max(peak, stays + step.disk_peak)
            stays += step.disk
        return max(peak, stays)


def plan(
    recipe: Recipe, root: str, *, workers: int | None = None, until: str | None = None, offline: bool = False
) -> RunPlan:
    """What `run` with the same arguments would do. Writes nothing; raises InputError where a run would refuse."""
    check_workers(workers)
    root = urls.absolute(root)
    graph = build(recipe, Look(root, offline=offline, frozen=True), until)
    means = resources(root, workers)
    return RunPlan(recipe.name, root, _steps(graph, means), means, graph.notes)


def _steps(graph: Graph, means: Resources) -> tuple[PlannedStep, ...]:
    known: dict[str, Located] = {}
    texts: dict[str, int | None] = {}
    steps = []
    for node in graph.nodes:
        located = locate(node, known)
        known[node.label] = located
        texts[node.label] = _text_bytes(located, texts)
        phase = None
        if located.manifest is None and located.settled and _is_known(node):
            phase, imagined = _first_phase(step_of(located, known), node)
            if imagined is not None:  # nothing to run: the step is as good as done for those that read it
                known[node.label] = Located(node, located.fingerprint, located.directory, imagined, True)
        steps.append(_planned(located, phase, texts[node.label], means))
    return tuple(steps)


def _is_known(node: Node) -> bool:
    return node.state is None or node.state.files is not None


def _first_phase(step: Step, node: Node) -> tuple[Phase | None, Manifest | None]:
    """The stage's own first tasks; or, where it has none, the manifest that the step would get."""
    generator = node.plan(step)
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


def _text_bytes(located: Located, texts: dict[str, int | None]) -> int | None:
    """The text that the step holds (download, normalize, consolidate) or works on (the others)."""
    node = located.node
    if located.manifest is not None and (exact := manifest_text_bytes(located.manifest)) is not None:
        return exact
    if node.state is not None:
        return raw_text_bytes(node.state.files) if node.state.files is not None else None
    above = [texts[label] for role, label in node.upstream if role in ("download", "normalize", "consolidate")]
    return None if None in above else sum(size for size in above if size is not None)


def _planned(located: Located, phase: Phase | None, text: int | None, means: Resources) -> PlannedStep:
    node, manifest = located.node, located.manifest
    disk, disk_peak = _disk(located, text)
    tasks, memory, at_a_time, reason = _concurrency(located, phase, means)
    return PlannedStep(
        stage=node.stage,
        source=node.source,
        state=_state(located),
        directory=located.directory,
        fingerprint=located.fingerprint,
        settled=located.settled,
        reads=tuple(label for _, label in node.upstream) if node.upstream else _reads(node),
        rows=manifest.totals.rows if manifest is not None else None,
        text_bytes=text,
        tasks=tasks,
        task_memory=memory,
        at_a_time=at_a_time,
        reason=reason,
        disk=disk,
        disk_peak=disk_peak,
    )


def _reads(node: Node) -> tuple[str, ...]:
    assert node.state is not None
    files = node.state.files
    if files is None:
        return (node.state.base,)
    return (f"{node.state.base}: {len(files):,} files, {sum(file.size for file in files):,} bytes",)


def _state(located: Located) -> str:
    if located.manifest is not None:
        return DONE
    return PARTIAL if urls.exists(urls.join(located.directory, PARTIAL_NAME)) else TO_RUN


def _disk(located: Located, text: int | None) -> tuple[int | None, int | None]:
    if located.manifest is not None:
        return located.manifest.totals.bytes, located.manifest.totals.bytes
    state = located.node.state
    if state is None:
        return disk_bytes(located.node.stage, text) if text is not None else (None, None)
    if urls.is_local(state.base):
        return 0, 0  # read in place
    size = sum(file.size for file in state.files) if state.files is not None else None
    return size, size


def _concurrency(
    located: Located, phase: Phase | None, means: Resources
) -> tuple[int | None, int | None, int | None, str]:
    """(tasks, memory of the largest, how many at a time, why that many)."""
    if located.manifest is not None:
        return None, None, None, "found done: no worker is started"
    if phase is None:
        if not _is_known(located.node):
            return None, None, None, "known when its files are listed"
        reading = "nothing to run: files are read in place"
        return (0, 0, 0, reading) if located.settled else (None, None, None, "known when its inputs are done")
    largest = max((task.input_bytes for task in phase.tasks), default=0)
    memory = int(phase.memory_bytes + phase.memory_per_input_byte * largest)
    limits = {
        "the number of tasks": len(phase.tasks),
        "the workers": max(1, means.workers // phase.cpus),
        "the memory": max(1, means.memory_bytes // max(1, memory)),
    }
    what = min(limits, key=lambda name: limits[name])
    return len(phase.tasks), memory, limits[what], f"limited by {what}"
