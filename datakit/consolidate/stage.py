"""Implements stage `consolidate`: writes each normalized partition without the rows that the select step lists, checks
that no record is lost, and adds the dataset card. The output can be published as it is; no other stage reads it. Each
partition of each source becomes one output partition, even if it ends up empty, so partition numbers keep their
meaning. All columns are kept. A partition in which all rows stay is not written again: on a disk, it becomes a hard
link to the normalized file, and in an object store, a copy that the store makes. The step fails unless `rows out ==
rows in - dropped` holds for every partition and for every source.

Cost: for partitions from which rows leave, reading Parquet and, above all, compressing it with zstd; for all others,
hashing the file. Partitions are streamed, so memory use is constant.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from datakit.consolidate import card
from datakit.consolidate.write_partitions import BUCKET, QUARANTINED, Pair, Written
from datakit.engine.partition_grouping import neighbours
from datakit.engine.quarantine import MAX_QUARANTINED, check_limit
from datakit.engine.task import (
    BATCH_HANG_SECONDS,
    Output,
    OutputFile,
    Phase,
    Plan,
    Step,
    StepInput,
    Task,
    TaskContext,
    TaskResult,
    tolerance_of,
)
from datakit.errors import CorruptError, EmptyStageError
from datakit.storage import atomic, urls
from datakit.storage.manifest import data_path
from datakit.storage.selection.buckets import FOLDER
from datakit.storage.selection.leaving_rows import selected
from datakit.toml_config import key

NAME = "consolidate"
FORMAT_VERSION = 3
CORE = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.large_string()),
        ("source", pa.string()),
        ("source_id", pa.string()),
        ("edited_id", pa.string()),
    ]
)


@dataclass(frozen=True)
class Config:
    """The settings of consolidate: how many documents may be quarantined."""

    max_quarantined: Annotated[int | float, MAX_QUARANTINED] = 0
    quarantine: Annotated[
        tuple[str, ...],
        key('Documents, as "data/source/partition:row", that may be left out in addition to `max_quarantined`.',
            ["data/novels/part-00003.parquet:17"]),
    ] = ()  # fmt: skip

    def __post_init__(self) -> None:
        check_limit(self.max_quarantined)


def plan(step: Step) -> Plan:
    """Plan tasks that write every partition without the rows that leave, then one task that writes the dataset card."""
    pairs = [pair for entry in step.inputs_of("normalize") for pair in _pairs(step, entry)]
    groups = neighbours([pair.text_bytes for pair in pairs])
    tasks = tuple(_task(pairs[group.start : group.stop]) for group in groups)
    results = yield Phase(
        "write", tasks, memory_per_input_byte=0.5, hang_seconds=BATCH_HANG_SECONDS, tolerance=tolerance_of(step)
    )
    written = [msgspec.convert(entry, Written) for result in results for entry in result.details["partitions"]]
    (select,) = step.inputs_of("select")
    by_source = defaultdict[str, list[Written]](list)
    for one in written:
        by_source[one.partition.source].append(one)
    sources = [_counts(entry, select, by_source[str(entry.source)]) for entry in step.inputs_of("normalize")]
    _check_conservation(sources)
    reasons = _shown_reasons(sources, select.manifest.details["drop"])
    text = card.render(step.dataset, step.fingerprint, sources, _lineage(step), reasons)
    (carded,) = yield Phase("card", (Task("card", f"{__name__}:write_card", {"text": text}),))
    details = {"sources": {source.name: _plain(source) for source in sources}}
    schema = CORE.append(BUCKET) if FOLDER in select.manifest.details else CORE
    return Output([entry.partition for entry in written], schema, details=details, files=carded.outputs)


def _pairs(step: Step, entry: StepInput) -> list[Pair]:
    """Return the partitions of a source, each with its selection."""
    assert entry.source is not None
    (select,) = step.inputs_of("select")
    partitions = entry.manifest.partitions_of(entry.source)
    selections = selected(select.directory, select.manifest, entry.source, partitions)
    return [
        Pair(
            partition=partition,
            directory=entry.directory,
            leaving=selection.leaving,
            output=data_path(entry.source, urls.name(partition.path)),
            staying=selection.rows,
            edits=selection.edits,
            buckets=selection.buckets,
            with_buckets=FOLDER in select.manifest.details,
        )
        for partition, selection in zip(partitions, selections, strict=True)
    ]


def _task(pairs: list[Pair]) -> Task:
    key = pairs[0].output if len(pairs) == 1 else f"{pairs[0].output} and {len(pairs) - 1} more"
    return Task(
        key,
        "datakit.consolidate.write_partitions:consolidate",
        {"partitions": msgspec.to_builtins(pairs)},
        sum(pair.text_bytes for pair in pairs),
        bisect_argument="partitions",
    )


def _counts(entry: StepInput, select: StepInput, mine: list[Written]) -> card.SourceCounts:
    """Add up the counts of a source. mine: the results for its partitions."""
    assert entry.source is not None
    dropped = Counter[str](select.manifest.details["sources"][entry.source]["combinations"])
    if quarantined := sum(one.quarantined for one in mine):
        dropped[QUARANTINED] = quarantined
    rows = sum(one.partition.rows for one in mine)
    text_bytes = sum(one.partition.text_bytes or 0 for one in mine)
    removed = dict(sorted(dropped.items()))
    read, normalized = entry.manifest.totals.rows, entry.manifest.counters
    buckets = {name: sum(one.buckets[name] for one in mine) for name in (mine[0].buckets if mine else ())}
    return card.SourceCounts(entry.source, len(mine), read, removed, rows, text_bytes, normalized, buckets)


def _shown_reasons(sources: list[card.SourceCounts], drop: Sequence[str]) -> list[str]:
    """Return the reasons that get a column in the card: those in the recipe, and all others that occur."""
    return list(dict.fromkeys([*drop, *(reason for source in sources for reason in source.dropped)]))


def _check_conservation(sources: list[card.SourceCounts]) -> None:
    for source in sources:
        dropped = sum(source.dropped.values())
        if source.records_in - dropped != source.records_out:
            raise CorruptError(
                f"source {source.name!r}: of {source.records_in} records, {dropped} were dropped "
                f"({source.dropped}) and {source.records_out} were written, which does not add up; remove this step's "
                "directory and run again"
            )
    if not any(source.records_out for source in sources):
        raise EmptyStageError(
            f"consolidate wrote none of {sum(source.records_in for source in sources)} documents; check the counters "
            "of earlier steps with `datakit inspect`"
        )


def _lineage(step: Step) -> list[card.Upstream]:
    return [
        card.Upstream(entry.role, entry.source, entry.manifest.identity, urls.relative(entry.directory, step.directory))
        for entry in step.inputs
    ]


def _plain(source: card.SourceCounts) -> dict[str, Any]:
    return {
        key: value for key, value in msgspec.to_builtins(source).items() if key not in ("name", "normalized", "buckets")
    }


def write_card(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write README.md."""
    committed = atomic.commit_bytes(arguments["text"].encode(), urls.join(context.step_directory, "README.md"))
    return TaskResult((OutputFile("README.md", committed.bytes, committed.xxh3),))
