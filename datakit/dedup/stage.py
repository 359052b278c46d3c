"""Stage `dedup`: defines all options of deduplication (including those of the signatures) and their limits; decides
which phases run, and how many tasks each phase has.

The phases run in this order:

    exact        ids in several sources: the first source in the recipe keeps the document  (only with several sources)
    bands        the band keys of the remaining documents are routed to buckets
    buckets      documents that share a key are connected, which gives one spanning forest per bucket
    forests      forests are merged in a tree of tasks                                     (only if there are many)
    labels       the last forests give each clustered document its component
    shingles     the shingle sets of clustered documents are routed by component
    verify       each clustered document is compared exactly with retained documents
    attributes   one file per partition lists the removed documents, with the reasons

Dedup itself removes nothing: `consolidate` reads the attribute files and leaves out the documents listed there. Only
the text of clustered documents is read again. The manifest reports the removals per source, the cluster sizes and the
S-curve. The result does not depend on how partitions are grouped into tasks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, TypedDict

import msgspec

from datakit.dedup import exact_duplicates
from datakit.dedup.attributes import SCHEMA
from datakit.dedup.clusters.bands import ROW_BYTES
from datakit.dedup.minhash.s_curve import s_curve
from datakit.dedup.minhash.signatures_stage import PRELOADS, SignatureConfig
from datakit.dedup.partitions import Part, all_parts, power_of_two
from datakit.dedup.phase_data import ForestFiles, Judged, Labelled, PartRange, Runs, Shared, Written, details_of
from datakit.dedup.report import check_removal, cluster_report, removal_report
from datakit.dedup.survivors import check_columns, check_prefer
from datakit.dedup.verification.rules import COUNTED, MEASURES
from datakit.engine.exchange.exchange import merged, run_sizes
from datakit.engine.partition_grouping import neighbours
from datakit.engine.task import Output, Phase, Plan, Step, Task, TaskResult
from datakit.errors import suggestion
from datakit.storage.fingerprint import config_of
from datakit.storage.manifest import Partition
from datakit.toml_config import key

NAME = "dedup"
FORMAT_VERSION = 2
TASK_BYTES = 64 << 20  # bytes of input per task
FAN_IN = 16  # maximum number of forests that one task merges
SORTING_BYTES = 384 << 20  # memory for sorting in blocks, an exchange writer and the libraries; measured: up to 250 MiB
PART_BYTES = 2 << 10  # memory for the description of a part, which every task decodes
Results = Generator[Phase, Sequence[TaskResult], Sequence[TaskResult]]


class Bounded(TypedDict):
    """The arguments of a phase that declare its tasks' memory."""

    memory_bytes: int
    memory_per_input_byte: float


@dataclass(frozen=True)
class Config(SignatureConfig):
    """The parameters of deduplication, including those of the signatures."""

    threshold: Annotated[
        float, key("Two documents are duplicates if their similarity is at least this.", 0.9)
    ] = 0.8  # fmt: skip
    measure: Annotated[
        str,
        key("The similarity: `jaccard`, or `containment`: the share of a document's shingles that the retained one "
            "contains.", "containment", MEASURES),
    ] = "jaccard"  # fmt: skip
    prefer: Annotated[
        tuple[str, ...],
        key("Which of several duplicates is kept: the `longest`, the one with the highest `score:<column>`, or the one "
            "whose `source` comes first; later entries decide ties.", ["score:quality", "longest"]),
    ] = ("longest",)  # fmt: skip
    max_comparisons: Annotated[
        int, key("The maximum number of retained documents with which one document is compared.", 256)
    ] = 64
    max_removal: Annotated[float, key("The step fails if a source would lose a larger share of documents.", 0.5)] = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.threshold <= 1.0:
            raise ValueError(f"threshold is {self.threshold}; it must be above 0 and at most 1")
        if not 0.0 <= self.max_removal <= 1.0:
            raise ValueError(f"max_removal is {self.max_removal}; it must be from 0 to 1")
        if not 1 <= self.max_comparisons <= 10_000:
            raise ValueError(f"max_comparisons is {self.max_comparisons}; it must be from 1 to 10000")
        if self.measure not in MEASURES:
            raise ValueError(f"measure is {self.measure!r}; {suggestion(self.measure, MEASURES)}")
        check_prefer(self.prefer)

    @property
    def signature(self) -> SignatureConfig:
        """The parameters of the stage `signatures`."""
        return SignatureConfig(self.bands, self.rows, self.ngram, self.seed, self.min_shingles)


def plan(step: Step) -> Plan:
    """Yield the phases in order, without those that would have nothing to do."""
    config, parts = config_of(step.parameters, Config), all_parts(step)
    for entry in step.inputs_of("normalize"):
        check_columns(config.prefer, entry.source or entry.manifest.dataset, entry.manifest)
    sources = list(dict.fromkeys(part.source for part in parts))
    shared = config_of({**asdict(config), "parts": parts}, Shared)
    shared = replace(shared, exact_runs=(yield from _exact(step, sources, shared)))
    forests = yield from _forests(step, shared)
    judged = (yield from _verdicts(step, forests, shared)) if forests else []
    verdict_runs = yield from merged(step, "verdicts", run_sizes(judged), readers=len(parts))
    tasks = _tasks("attributes:write", [part.signature_bytes for part in parts])
    shared = replace(shared, verdict_runs=verdict_runs)
    written = yield Phase("attributes", tasks, msgspec.to_builtins(shared), PRELOADS, **_bounded(parts))
    removed = [pair for result in details_of(written, Written) for pair in result.removed]
    report = removal_report(parts, removed)
    check_removal(report, step.operations.get("max_removal", config.max_removal))
    clusters = cluster_report(details_of(judged, Judged))
    details = {"sources": report, "clusters": clusters, "s_curve": s_curve(config.bands, config.rows)}
    zeros = dict.fromkeys([f"dedup/{name}" for name in (*COUNTED, "clustered", "clusters")], 0)  # in case no task ran
    return Output(_partitions(parts, written), SCHEMA, zeros, details)


def _tasks(function: str, sizes: Sequence[int], buckets: int = 0) -> tuple[Task, ...]:
    """Return one task per group of neighboring parts. `sizes` gives the number of bytes to read from each part."""
    name, ranges = f"datakit.dedup.{function}", [PartRange(one.start, one.stop, buckets) for one in neighbours(sizes)]
    return tuple(
        Task(f"{one.first:05d}", name, msgspec.to_builtins(one), sum(sizes[one.first : one.stop])) for one in ranges
    )


def _bounded(parts: Sequence[Part]) -> Bounded:
    """Return the budget of a phase whose tasks sort their rows in blocks, however many rows they read."""
    return {"memory_bytes": SORTING_BYTES + PART_BYTES * len(parts), "memory_per_input_byte": 0.0}


def _exact(step: Step, sources: list[str], shared: Shared) -> Generator[Phase, Sequence[TaskResult], list[str]]:
    if len(sources) < 2:
        return []
    tasks = exact_duplicates.tasks(shared.parts)
    results = yield Phase("exact", tasks, msgspec.to_builtins(shared), PRELOADS, **_bounded(shared.parts))
    return (yield from merged(step, "exact", run_sizes(results), readers=2 * len(shared.parts)))


def _forests(step: Step, shared: Shared) -> Generator[Phase, Sequence[TaskResult], list[tuple[str, int]]]:
    """Yield the phases `bands`, `buckets` and `forests`, and return the forests that remain (at most FAN_IN), each as
    (path, number of edges).
    """
    buckets = power_of_two(sum(part.rows for part in shared.parts) * shared.bands * ROW_BYTES / TASK_BYTES)
    tasks = _tasks("clusters.bands:route", [part.signature_bytes for part in shared.parts], buckets)
    routed = yield Phase("bands", tasks, msgspec.to_builtins(shared), PRELOADS)
    runs = yield from merged(step, "bands", run_sizes(routed), readers=buckets)
    tasks = _bucket_tasks("clusters.bands:connect", routed, buckets)
    results = yield Phase("buckets", tasks, msgspec.to_builtins(Runs(runs)), PRELOADS)
    level = 0
    while len(forests := _forest_files(results)) > FAN_IN:
        results = yield Phase(f"forests-{level}", tuple(_merges(forests, level)), {}, PRELOADS)
        level += 1
    return forests


def _forest_files(results: Sequence[TaskResult]) -> list[tuple[str, int]]:
    return [(path, result.edges) for result in details_of(results, ForestFiles) for path in result.forests]


def _merges(forests: Sequence[tuple[str, int]], level: int) -> Iterator[Task]:
    for number, start in enumerate(range(0, len(forests), FAN_IN)):
        group = forests[start : start + FAN_IN]
        yield _forest_task(f"{number:05d}", "merge", group, f"merged-{level}-{number:05d}")


def _forest_task(key: str, function: str, forests: Sequence[tuple[str, int]], name: str = "") -> Task:
    arguments = {"forests": [path for path, _ in forests], "name": name}
    return Task(key, f"datakit.dedup.clusters.forests:{function}", arguments, 16 * sum(edges for _, edges in forests))


def _verdicts(step: Step, forests: Sequence[tuple[str, int]], shared: Shared) -> Results:
    """Yield the phases `labels`, `shingles` and `verify`, and return the results of the last one."""
    parts, task = shared.parts, _forest_task("all", "label", forests)
    labelled = yield Phase("labels", (task,), msgspec.to_builtins(shared), PRELOADS, memory_per_input_byte=10.0)
    labels = yield from merged(step, "labels", run_sizes(labelled), readers=len(parts))
    (about,) = details_of(labelled, Labelled)
    documents, text = sum(part.rows for part in parts), sum(part.text_bytes for part in parts)
    row_bytes = 1.3 * text / documents + 250  # 1.3 bytes of shingles per byte of text; 250 bytes of other columns
    buckets = power_of_two(about.rows * row_bytes / (2 * TASK_BYTES))
    tasks = _tasks("verification.cluster_shingles:route", [part.text_bytes for part in parts], buckets)
    routed = yield Phase("shingles", tasks, msgspec.to_builtins(replace(shared, runs=labels)), PRELOADS)
    runs = yield from merged(step, "shingles", run_sizes(routed), readers=buckets)
    tasks = _bucket_tasks("verification.verify:judge", routed, buckets)
    common = msgspec.to_builtins(replace(shared, runs=runs))
    return (yield Phase("verify", tasks, common, PRELOADS, **_bounded(parts)))


def _bucket_tasks(function: str, routed: Sequence[TaskResult], buckets: int) -> tuple[Task, ...]:
    """Return one task per bucket. `routed` holds the results of the tasks that wrote to the buckets."""
    size = sum(output.bytes for result in routed for output in result.outputs) // buckets
    return tuple(
        Task(f"{number:05d}", f"datakit.dedup.{function}", {"bucket": number}, size) for number in range(buckets)
    )


def _partitions(parts: Sequence[Part], written: Sequence[TaskResult]) -> list[Partition]:
    outputs = [output for result in written for output in result.outputs]
    bounds = [pair for result in details_of(written, Written) for pair in result.bounds]
    return [
        Partition(file.path, part.source, file.rows, file.bytes, file.xxh3, first_id=first, last_id=last)
        for part, file, (first, last) in zip(parts, outputs, bounds, strict=True)
    ]
