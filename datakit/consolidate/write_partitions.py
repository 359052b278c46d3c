"""Writes normalized partitions without the rows that leave, and counts the documents of each partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datakit.engine.task import OutputFile, QuarantinedRecord, TaskContext, TaskResult
from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.manifest import Partition
from datakit.storage.parquet import ShardWriter, iterate_shard, open_shard
from datakit.storage.row_size import row_sizes
from datakit.storage.selection.leaving_rows import LeavingRows, only

QUARANTINED = "quarantined"
EDITED = pa.field("edited_id", pa.string())


@dataclass(frozen=True)
class Pair:
    """A partition (`dataset` is its URL) and the URL of the list of its rows that leave, if any. output: the path of
    the output partition, relative to the step's directory. rows: the partition's row count in the manifest. staying:
    the number of documents that stay.
    """

    source: str
    dataset: str
    leaving: str | None
    output: str
    rows: int
    staying: int
    text_bytes: int


@dataclass(frozen=True)
class Written:
    """A written partition, with the number of documents to write and the number of those that were quarantined."""

    partition: Partition
    rows_in: int
    quarantined: int


def consolidate(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the given partitions without the rows that leave."""
    written: list[Written] = []
    left_out: list[QuarantinedRecord] = []
    records = bytes_read = 0
    for pair in msgspec.convert(arguments["partitions"], list[Pair]):
        entry, quarantined = _consolidate_one(pair, context)
        left_out += quarantined
        written.append(entry)
        records, bytes_read = records + pair.rows, bytes_read + pair.text_bytes
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
    }


def _consolidate_one(pair: Pair, context: TaskContext) -> tuple[Written, list[QuarantinedRecord]]:
    with open_shard(pair.dataset) as shard:
        schema = _with_edited_id(shard.schema_arrow)
    leaving, rows_in, text_bytes, ends, left_out = LeavingRows(pair.leaving, pair.dataset), 0, 0, [], []
    with ShardWriter(urls.join(context.step_directory, pair.output), schema, ["source"]) as writer:
        for table in iterate_shard(pair.dataset):
            staying = leaving.staying(table["id"])
            positions = rows_in + (np.arange(table.num_rows) if staying is None else np.flatnonzero(staying))
            rows_in += table.num_rows
            chosen = table if staying is None else only(table, staying)
            kept, gone = _guarded(_edited(chosen, schema), positions, pair.output, context)
            left_out += gone
            if kept.num_rows:
                ends = [ends[0] if ends else kept["id"][0].as_py(), kept["id"][-1].as_py()]
                text_bytes += int(row_sizes(kept.select(["text"])).sum())
                writer.write(kept)
            context.release()
        leaving.expect_end()
    info = writer.info
    if rows_in != pair.rows or info.rows != pair.staying - len(left_out):
        raise CorruptError(
            f"{pair.dataset}: the manifest lists {pair.rows} rows, of which {pair.staying} stay, but {rows_in} were "
            f"read, {len(left_out)} quarantined and {info.rows} written; remove the directory of the step that wrote "
            "this file, and run again"
        )
    first, last = ends or (None, None)
    partition = Partition(
        pair.output, pair.source, info.rows, info.bytes, info.xxh3, text_bytes, first_id=first, last_id=last
    )
    return Written(partition, pair.staying, len(left_out)), left_out


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


def _with_edited_id(schema: pa.Schema) -> pa.Schema:
    place = schema.get_field_index(EDITED.name)
    return (schema if place < 0 else schema.remove(place)).append(EDITED)


def _edited(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if EDITED.name in table.column_names:
        table = table.drop_columns([EDITED.name])
    return table.append_column(EDITED, pa.nulls(table.num_rows, EDITED.type)).cast(schema)
