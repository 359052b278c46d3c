"""Writes normalized partitions without the documents to be removed, and counts the removals from each partition."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datakit.consolidate.join import Joined, join
from datakit.engine.task import OutputFile, QuarantinedRecord, TaskContext, TaskResult
from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.manifest import Partition
from datakit.storage.parquet import ShardWriter, open_shard
from datakit.storage.row_size import row_sizes

REASONS = ("exact", "fuzzy")  # the reasons in dedup's attributes
QUARANTINED = "quarantined"
EDITED = pa.field("edited_id", pa.string())


@dataclass(frozen=True)
class Pair:
    """A partition (`dataset` is its URL) and the URL of its attributes, if any. output: the path of the output
    partition, relative to the step's directory. rows: the partition's row count in the manifest.
    """

    source: str
    dataset: str
    attributes: str | None
    output: str
    rows: int
    text_bytes: int


@dataclass(frozen=True)
class Written:
    """A written partition and its counts. dropped: the number of documents removed for each reason. marked_kept: the
    number of documents kept although they have an attribute.
    """

    partition: Partition
    rows_in: int
    dropped: dict[str, int]
    marked_kept: int


def consolidate(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the given partitions without the documents to be removed."""
    drop = frozenset(arguments["drop"])
    written: list[Written] = []
    left_out: list[QuarantinedRecord] = []
    records = bytes_read = 0
    for pair in msgspec.convert(arguments["partitions"], list[Pair]):
        entry, quarantined = _consolidate_one(pair, drop, context)
        left_out += quarantined
        written.append(entry)
        records, bytes_read = records + entry.rows_in, bytes_read + pair.text_bytes
        context.report(records, bytes_read)
    parts = [entry.partition for entry in written]
    outputs = tuple(OutputFile(part.path, part.bytes, part.xxh3, part.rows) for part in parts)
    details = {"partitions": msgspec.to_builtins(written)}
    return TaskResult(outputs, _counters(written), details, tuple(left_out), records, bytes_read)


def _counters(written: list[Written]) -> dict[str, int]:
    dropped = sum((Counter(entry.dropped) for entry in written), Counter())
    return {
        "consolidate/records_out": sum(entry.partition.rows for entry in written),
        "consolidate/marked_kept": sum(entry.marked_kept for entry in written),
        "consolidate/records_in": sum(entry.rows_in for entry in written),
        **{f"consolidate/dropped_{reason}": dropped[reason] for reason in (*REASONS, QUARANTINED)},
    }


def _consolidate_one(pair: Pair, drop: frozenset[str], context: TaskContext) -> tuple[Written, list[QuarantinedRecord]]:
    with open_shard(pair.dataset) as shard:
        schema = _with_edited_id(shard.schema_arrow)
    rows_in, text_bytes, marked_kept, dropped, ends, left_out = 0, 0, 0, Counter[str](), [], []
    with ShardWriter(urls.join(context.step_directory, pair.output), schema, ["source"]) as writer:
        for joined in join(pair.dataset, pair.attributes, drop):
            kept, gone = _guarded(_edited(joined.kept, schema), joined, pair.output, rows_in, context)
            rows_in += joined.rows_in
            dropped.update(joined.dropped)
            dropped.update([QUARANTINED] * len(gone))
            left_out += gone
            marked_kept += joined.marked_kept
            if kept.num_rows:
                ends = [ends[0] if ends else kept["id"][0].as_py(), kept["id"][-1].as_py()]
                text_bytes += int(row_sizes(kept.select(["text"])).sum())
                writer.write(kept)
            context.release()
    info = writer.info
    if rows_in != pair.rows or info.rows != rows_in - dropped.total():
        raise CorruptError(
            f"{pair.dataset}: the manifest lists {pair.rows} rows, but {rows_in} were read, {dropped.total()} "
            f"dropped and {info.rows} written; remove the directory of the step that wrote this file, and run again"
        )
    first, last = ends or (None, None)
    partition = Partition(
        pair.output, pair.source, info.rows, info.bytes, info.xxh3, text_bytes, first_id=first, last_id=last
    )
    return Written(partition, rows_in, dict(dropped), marked_kept), left_out


def _guarded(
    table: pa.Table, joined: Joined, name: str, first: int, context: TaskContext
) -> tuple[pa.Table, list[QuarantinedRecord]]:
    """Return the rows that can be written, and a quarantine record for each row that crashes the writer. first: the
    index, within the partition, of the row group's first row.
    """
    positions = first + (np.arange(table.num_rows) if joined.rows is None else joined.rows)

    def alone(row: int) -> None:
        pq.write_table(table.slice(row, 1), pa.BufferOutputStream(), compression="zstd")

    kept, left_out = context.records(name, positions, alone)
    return (table if kept is None else table.filter(pa.array(kept))), left_out


def _with_edited_id(schema: pa.Schema) -> pa.Schema:
    place = schema.get_field_index(EDITED.name)
    return (schema if place < 0 else schema.remove(place)).append(EDITED)


def _edited(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if EDITED.name in table.column_names:
        table = table.drop_columns([EDITED.name])
    return table.append_column(EDITED, pa.nulls(table.num_rows, EDITED.type)).cast(schema)
