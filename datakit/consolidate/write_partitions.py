"""Writes normalized partitions without the rows that leave and with edited texts, and counts the documents of each
partition. A partition in which all rows stay and no text is edited is not written again but linked or copied
(`identical_files.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datakit.consolidate.identical_files import commit_identical
from datakit.engine.task import OutputFile, QuarantinedRecord, TaskContext, TaskResult
from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.manifest import Partition
from datakit.storage.parquet import ShardWriter, iterate_shard, open_shard
from datakit.storage.row_size import row_sizes
from datakit.storage.selection.buckets import BucketNames, Members
from datakit.storage.selection.leaving_rows import LeavingRows, only
from datakit.text.edited_texts import EDITED_ID, EditedTexts

QUARANTINED = "quarantined"
BUCKET = pa.field("bucket", pa.string())


@dataclass(frozen=True)
class Pair:
    """A normalized partition, as its manifest describes it, and the directory of its step. leaving: the URL of the list
    of the rows that leave; None if all stay. output: the path of the output partition, relative to the step's
    directory. staying: the number of documents that stay. edits: the URL of the list of edits; None if there are none.
    buckets: the documents of each document bucket; empty if the source is not divided. with_buckets: True if a source
    of the dataset is divided, so that all files have the column `bucket`.
    """

    partition: Partition
    directory: str
    leaving: str | None
    output: str
    staying: int
    edits: str | None = None
    buckets: dict[str, Members] = field(default_factory=dict)
    with_buckets: bool = False

    @property
    def dataset(self) -> str:
        """The URL of the normalized partition."""
        return urls.join(self.directory, self.partition.path)

    @property
    def text_bytes(self) -> int:
        """The size of the text in the normalized partition; if it is unknown, the size of the file."""
        return self.partition.text_bytes or self.partition.bytes


@dataclass(frozen=True)
class Written:
    """A written partition, with the number of documents that stay and the number of those that were quarantined.
    unchanged: True if the partition is the normalized file. edited: the number of documents with edited texts.
    buckets: the number of documents in each document bucket; empty if the source is not divided.
    """

    partition: Partition
    rows_in: int
    quarantined: int = 0
    unchanged: bool = False
    edited: int = 0
    buckets: dict[str, int] = field(default_factory=dict)


def consolidate(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the given partitions without the rows that leave."""
    written: list[Written] = []
    left_out: list[QuarantinedRecord] = []
    records = bytes_read = 0
    for pair in msgspec.convert(arguments["partitions"], list[Pair]):
        untouched = pair.leaving is None and pair.edits is None and not pair.with_buckets
        entry, quarantined = _unchanged(pair, context) if untouched else _filtered(pair, context)
        left_out += quarantined
        written.append(entry)
        records, bytes_read = records + pair.partition.rows, bytes_read + pair.text_bytes
        context.report(records, bytes_read)
    parts = [entry.partition for entry in written]
    outputs = tuple(OutputFile(part.path, part.bytes, part.xxh3, part.rows) for part in parts)
    details = {"partitions": msgspec.to_builtins(written)}
    return TaskResult(outputs, _counters(written), details, tuple(left_out), records, bytes_read)


def _counters(written: list[Written]) -> dict[str, int]:
    return {
        "consolidate/records_in": sum(entry.rows_in for entry in written),
        "consolidate/records_out": sum(entry.partition.rows for entry in written),
        "consolidate/dropped_quarantined": sum(entry.quarantined for entry in written),
        "consolidate/unchanged_partitions": sum(entry.unchanged for entry in written),
        **({"consolidate/edited": edited} if (edited := sum(entry.edited for entry in written)) else {}),
    }


def _unchanged(pair: Pair, context: TaskContext) -> tuple[Written, list[QuarantinedRecord]]:
    whole = pair.partition
    commit_identical(pair.dataset, urls.join(context.step_directory, pair.output), whole.bytes, whole.xxh3)
    return Written(msgspec.structs.replace(whole, path=pair.output), pair.staying, unchanged=True), []


def _filtered(pair: Pair, context: TaskContext) -> tuple[Written, list[QuarantinedRecord]]:
    with open_shard(pair.dataset) as shard:
        schema = shard.schema_arrow
    buckets = BucketNames(pair.buckets, pair.dataset) if pair.buckets else None
    schema = schema.append(BUCKET) if pair.with_buckets else schema
    leaving, edits = LeavingRows(pair.leaving, pair.dataset), EditedTexts(pair.edits, pair.dataset)
    rows_in, text_bytes, edited, ends, left_out = 0, 0, 0, [], []
    counts = Counter[str](dict.fromkeys(pair.buckets, 0))
    with ShardWriter(urls.join(context.step_directory, pair.output), schema, _dictionary(pair)) as writer:
        for table in iterate_shard(pair.dataset):
            table, staying = edits.apply(table), leaving.staying(table["id"])
            if pair.with_buckets:
                names = pa.nulls(table.num_rows, BUCKET.type) if buckets is None else buckets.of(table["id"])
                table = table.append_column(BUCKET, names)
            positions = rows_in + (np.arange(table.num_rows) if staying is None else np.flatnonzero(staying))
            rows_in += table.num_rows
            chosen = table if staying is None else only(table, staying)
            kept, gone = _guarded(chosen, positions, pair.output, context)
            left_out += gone
            if kept.num_rows:
                ends = [ends[0] if ends else kept["id"][0].as_py(), kept["id"][-1].as_py()]
                text_bytes += int(row_sizes(kept.select(["text"])).sum())
                edited += kept.num_rows - kept[EDITED_ID].null_count
                if buckets is not None:
                    counts.update(
                        {str(one["values"]): one["counts"].as_py() for one in kept[BUCKET.name].value_counts()}
                    )
                writer.write(kept)
            context.release()
        leaving.expect_end()
        edits.expect_end()
        if buckets is not None:
            buckets.expect_end()
    info = writer.info
    if rows_in != pair.partition.rows or info.rows != pair.staying - len(left_out):
        raise CorruptError(
            f"{pair.dataset}: the manifest lists {pair.partition.rows} rows, of which {pair.staying} stay, but "
            f"{rows_in} were read, {len(left_out)} quarantined and {info.rows} written; remove the directory of the "
            "step that wrote this file, and run again"
        )
    first, last = ends or (None, None)
    source = pair.partition.source
    partition = Partition(
        pair.output, source, info.rows, info.bytes, info.xxh3, text_bytes, first_id=first, last_id=last
    )
    return Written(partition, pair.staying, len(left_out), edited=edited, buckets=dict(counts)), left_out


def _dictionary(pair: Pair) -> list[str]:
    """Return the columns with few distinct values."""
    return ["source", *([BUCKET.name] if pair.with_buckets else [])]


def _guarded(
    table: pa.Table, positions: np.ndarray, name: str, context: TaskContext
) -> tuple[pa.Table, list[QuarantinedRecord]]:
    """Return the rows that can be written, and a quarantine record for each row that crashes the writer. positions: the
    rows' indices in the normalized partition.
    """

    def alone(row: int) -> None:
        pq.write_table(table.slice(row, 1), pa.BufferOutputStream(), compression="zstd")

    kept, left_out = context.records(name, positions, alone)
    return (table if kept is None else table.filter(pa.array(kept))), left_out
