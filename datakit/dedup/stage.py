"""Stage `dedup`: defines all options of deduplication (including those of the signatures) and their limits; decides
which phases run, and how many tasks each phase has.

The phases run in this order:

    scores       the columns of annotators that `prefer` names are checked                     (only if there are any)
    exact        ids in several sources: the first source in the recipe keeps the document  (only with several sources)
    bands        the band keys of the remaining documents are routed to buckets
    buckets      documents that share a key are connected, which gives one spanning forest per bucket
    labels       the forests are joined, which gives each clustered document its component; if one task cannot hold
                 them all, further phases come before this one (`clusters/component_phases.py`)
    shingles     the shingle sets of clustered documents are routed by component
    verify       each clustered document is compared exactly with retained documents
    blocks, settle-0, probe-0, settle-1, ...
                 the same for giant components, block by block                 (only if there are any; `giants/plan.py`)
    attributes   one file per partition lists the removed documents, with the reasons

The arguments of a task describe only the parts that it reads. The shared data of a phase does not grow with the number
of parts, because rows are routed by row number (`row_buckets.py`), which needs no list of the parts.

Dedup itself removes nothing: `select` reads the attribute files and lists the documents that leave the dataset. Only
the text of clustered documents is read again. The manifest reports the removals per source, the cluster sizes and the
S-curve. The result does not depend on how partitions are grouped into tasks.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, TypedDict

import msgspec

from datakit.dedup import exact_duplicates
from datakit.dedup.attributes import SCHEMA
from datakit.dedup.clusters import labels
from datakit.dedup.clusters.bands import ROW_BYTES
from datakit.dedup.clusters.component_phases import label_phases
from datakit.dedup.giants import plan as plan_giants
from datakit.dedup.minhash.s_curve import s_curve
from datakit.dedup.minhash.signatures_stage import PRELOADS, SignatureConfig
from datakit.dedup.partitions import Part, all_parts
from datakit.dedup.phase_data import ForestFiles, Judged, Labelled, PartRange, Runs, Shared, Written, details_of
from datakit.dedup.report import check_removal, cluster_report, removal_report
from datakit.dedup.row_buckets import row_buckets
from datakit.dedup.score_tables import annotated_columns, check_phase
from datakit.dedup.survivors import check_columns, check_prefer
from datakit.dedup.verification import verify
from datakit.dedup.verification.rules import COUNTED, MEASURES
from datakit.engine.exchange.exchange import both, merged, run_sizes
from datakit.engine.exchange.row_buckets import power_of_two
from datakit.engine.partition_grouping import neighbours
from datakit.engine.task import Output, Phase, Plan, Step, Task, TaskResult
from datakit.errors import suggestion
from datakit.storage.fingerprint import config_of
from datakit.storage.manifest import Partition
from datakit.toml_config import key

NAME = "dedup"
FORMAT_VERSION = 2
TASK_BYTES = 64 << 20  # bytes of input per task
SORTING_BYTES = 384 << 20  # to sort in blocks, with an exchange writer and the libraries; measured: up to 250 MiB
# bytes of band keys per task of phase `buckets`: a task with 48 MB takes 300 MiB of memory, one with 24 MB half of it
BAND_BYTES = 32 << 20
LEAST_MEMORY = 256 << 20  # minimum of `task_memory`; a task needs most of it for libraries and buffers
Results = Generator[Phase, Sequence[TaskResult], Sequence[TaskResult]]


class Bounded(TypedDict):
    """The arguments of a `Phase` that set the memory of its tasks."""

    memory_bytes: int
    memory_per_input_byte: float


# the budget of a phase whose tasks sort their rows in blocks; it does not depend on the number of rows
BOUNDED: Bounded = {"memory_bytes": SORTING_BYTES, "memory_per_input_byte": 0.0}


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
        key("Which of several duplicates is kept: the `longest`, the one with the highest `score:<column>` (a column "
            "of the documents or, as `score:language.score`, of an annotator), or the one whose `source` comes first; "
            "later entries decide ties.", ["score:quality", "longest"]),
    ] = ("longest",)  # fmt: skip
    max_comparisons: Annotated[
        int, key("The maximum number of retained documents with which one document is compared.", 256)
    ] = 64
    max_removal: Annotated[float, key("The step fails if a source would lose a larger share of documents.", 0.5)] = 0.9
    task_memory: Annotated[
        int, key("The maximum memory, in bytes, of a task that finds clusters; does not change the output.", 2 << 30)
    ] = 512 << 20  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.threshold <= 1.0:
            raise ValueError(f"threshold is {self.threshold}; it must be above 0 and at most 1")
        if not 0.0 <= self.max_removal <= 1.0:
            raise ValueError(f"max_removal is {self.max_removal}; it must be from 0 to 1")
        if self.task_memory < LEAST_MEMORY:
            raise ValueError(f"task_memory is {self.task_memory}; it must be at least {LEAST_MEMORY} bytes")
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
    config = config_of(step.parameters, Config)
    scores = annotated_columns(config.prefer, step.inputs_of("annotate"))
    parts = all_parts(step, scores)
    for entry in step.inputs_of("normalize"):
        check_columns(config.prefer, entry.source or entry.manifest.dataset, entry.manifest, scores)
    yield from check_phase({part.source: part.scores for part in reversed(parts)})
    sources = [(part.source, part.first_row) for part in parts if not part.index]
    shared = config_of({**asdict(config), "buckets": row_buckets(parts), "sources": sources}, Shared)
    shared = replace(shared, exact_runs=(yield from _exact(step, parts, shared)))
    connected = yield from _connected(step, parts, shared)
    clustered = any(result.edges for result in details_of(connected, ForestFiles))
    memory = step.operations.get("task_memory", config.task_memory)
    judged, described = (yield from _verdicts(step, parts, connected, shared, memory)) if clustered else ([], [])
    by_row = shared.buckets.count
    verdict_runs = yield from merged(step, verify.EXCHANGE, run_sizes(judged), by_row, readers=by_row)
    tasks = _tasks("attributes:write", parts, [part.signature_bytes for part in parts])
    shared = replace(shared, verdict_runs=verdict_runs)
    written = yield Phase("attributes", tasks, msgspec.to_builtins(shared), PRELOADS, **BOUNDED)
    removed = [pair for result in details_of(written, Written) for pair in result.removed]
    report = removal_report(parts, removed)
    check_removal(report, step.operations.get("max_removal", config.max_removal))
    clusters = cluster_report(described)
    details = {"sources": report, "clusters": clusters, "s_curve": s_curve(config.bands, config.rows)}
    zeros = dict.fromkeys([f"dedup/{name}" for name in (*COUNTED, "clustered", "clusters")], 0)  # in case no task ran
    return Output(_partitions(parts, written), SCHEMA, zeros, details)


def _tasks(function: str, parts: Sequence[Part], sizes: Sequence[int], buckets: int = 0) -> tuple[Task, ...]:
    """Return one task per group of neighboring parts. `sizes` gives the number of bytes to read from each part."""
    return tuple(
        Task(
            f"{one.start:05d}",
            f"datakit.dedup.{function}",
            msgspec.to_builtins(PartRange(one.start, list(parts[one.start : one.stop]), buckets)),
            sum(sizes[one.start : one.stop]),
        )
        for one in neighbours(sizes)
    )


def _exact(step: Step, parts: Sequence[Part], shared: Shared) -> Generator[Phase, Sequence[TaskResult], list[str]]:
    if len(shared.sources) < 2:
        return []
    tasks = exact_duplicates.tasks(parts)
    results = yield Phase("exact", tasks, msgspec.to_builtins(shared), PRELOADS, **BOUNDED)
    by_row = shared.buckets.count
    return (yield from merged(step, exact_duplicates.EXCHANGE, run_sizes(results), by_row, readers=by_row, times=2))


def _connected(step: Step, parts: Sequence[Part], shared: Shared) -> Results:
    """Yield the phases `bands` and `buckets`, and return the results of the latter."""
    buckets = power_of_two(sum(part.rows for part in parts) * shared.bands * ROW_BYTES / BAND_BYTES)
    tasks = _tasks("clusters.bands:route", parts, [part.signature_bytes for part in parts], buckets)
    routed = yield Phase("bands", tasks, msgspec.to_builtins(shared), PRELOADS)
    runs = yield from merged(step, "bands", run_sizes(routed), buckets, readers=buckets)
    tasks = _bucket_tasks("clusters.bands:connect", routed, buckets)
    return (yield Phase("buckets", tasks, msgspec.to_builtins(Runs(runs)), PRELOADS, drops=both("bands")))


def _verdicts(
    step: Step, parts: Sequence[Part], connected: Sequence[TaskResult], shared: Shared, memory: int
) -> Generator[Phase, Sequence[TaskResult], tuple[list[TaskResult], list[Judged]]]:
    """Yield the phases from the search for components to the verdicts. Return the results of the tasks that wrote the
    verdicts, and the numbers and sizes of the components.
    """
    labelled = yield from label_phases(step, connected, shared.buckets, memory, plan_giants.GIANT)
    by_row = shared.buckets.count
    label_runs = yield from merged(step, labels.EXCHANGE, run_sizes(labelled), by_row, readers=by_row)
    giants = plan_giants.giants_among(details_of(labelled, Labelled))
    giant_rows = sum(size for _, size in giants)
    rows = sum(about.rows for about in details_of(labelled, Labelled)) - giant_rows
    documents, text = sum(part.rows for part in parts), sum(part.text_bytes for part in parts)
    row_bytes = 1.3 * text / documents + 250  # 1.3 bytes of shingles per byte of text; 250 bytes of other columns
    buckets = power_of_two(rows * row_bytes / (2 * TASK_BYTES))
    tasks = _tasks("verification.cluster_shingles:route", parts, [part.text_bytes for part in parts], buckets)
    shared = replace(shared, giants=giants, giant_buckets=power_of_two(giant_rows * row_bytes / (2 * TASK_BYTES)))
    plain = msgspec.to_builtins(replace(shared, runs=label_runs))
    routed = yield Phase("shingles", tasks, plain, PRELOADS, drops=both(labels.EXCHANGE))
    runs = yield from merged(step, "shingles", run_sizes(routed), buckets, readers=buckets)
    tasks = _bucket_tasks("verification.verify:judge", routed, buckets)
    common = msgspec.to_builtins(replace(shared, runs=runs))
    judged = yield Phase("verify", tasks, common, PRELOADS, drops=both("shingles"), **BOUNDED)
    settled, described = yield from plan_giants.judge_giants(step, routed, shared)
    return [*judged, *settled], [*details_of(judged, Judged), *described]


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
