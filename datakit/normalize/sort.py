"""The second half of normalize: one partition, sorted by id, exact duplicates out.

The rows of a range of ids are read from the exchange in the order of the source (mapped, not loaded), sorted by id with
a stable sort, so that of equal texts the first by position comes first and stays; the texts of the others are never
touched. What is written is cut into row groups as it is gathered.

Cost: zstd is most of it (150 to 250 MB/s of text a core); memory is one copy of the partition's kept rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from datakit.engine.exchange.exchange import read_buckets
from datakit.engine.task import OutputFile, TaskContext, TaskResult
from datakit.normalize.route import HIGH, LOW, TEXT, UPSTREAM
from datakit.normalize.schema_union import fit
from datakit.storage import urls
from datakit.storage.ids import ids_to_arrow
from datakit.storage.parquet import ShardInfo, ShardWriter
from datakit.text.string_buffers import string_buffers

PHASE = "sort"
GATHER_BYTES = 16 << 20
DUPLICATES = pa.schema([("id", pa.string()), ("source_id", pa.string()), ("kept_source_id", pa.string())])


def sort_partition(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """The task: see the module."""
    number, bits = arguments["partition"], shared["bits"]
    columns = {entry["name"]: entry["upstream"] for entry in shared["columns"]}
    schema = pa.ipc.read_schema(pa.BufferReader(shared["schema"]))
    tables = _of_partition(context, shared, number)
    order = Order.of(_numbers(tables, HIGH), _numbers(tables, LOW))
    documents = _gathered(tables, order.kept, shared["source"], schema, columns)
    name = f"part-{number:05d}-of-{1 << bits:05d}.parquet"
    info, text_bytes = _write(urls.join(context.step_directory, name), schema, documents)
    outputs = [OutputFile(name, info.bytes, info.xxh3, info.rows)]
    if len(order.left):
        table = _duplicates(tables, order, columns.get("source_id"))
        outputs.append(_write_duplicates(context, f"duplicates/{name}", table))
    ids = order.ids(order.kept[[0, -1]]).to_pylist() if info.rows else [None, None]
    counters = {"normalize/records_out": info.rows, "normalize/duplicates": len(order.left)}
    details = {"text_bytes": text_bytes, "first_id": ids[0], "last_id": ids[1]}
    return TaskResult(tuple(outputs), counters, details, records=len(order.rows))


@dataclass(frozen=True)
class Order:
    """Rows in the order of their ids; of equal ids the first in the source comes first.

    rows: int64 [N], row numbers in that order. first: bool [N], whether the id differs from the one before.
    high, low: uint64 [N], the ids by row number.
    """

    rows: np.ndarray
    first: np.ndarray
    high: np.ndarray
    low: np.ndarray

    @classmethod
    def of(cls, high: np.ndarray, low: np.ndarray) -> Order:
        """The order of some ids."""
        rows = np.lexsort((low, high))  # stable
        first = np.ones(len(rows), bool)
        first[1:] = (np.diff(high[rows]) != 0) | (np.diff(low[rows]) != 0)
        return cls(rows, first, high, low)

    @property
    def kept(self) -> np.ndarray:
        """The rows that stay."""
        return self.rows[self.first]

    @property
    def left(self) -> np.ndarray:
        """The rows that repeat one that stays."""
        return self.rows[~self.first]

    @property
    def stays_for_left(self) -> np.ndarray:
        """For each row of `left` the one that stays."""
        return self.kept[np.cumsum(self.first) - 1][~self.first]

    def ids(self, rows: np.ndarray) -> pa.StringArray:
        """The ids of some rows, as they are written."""
        return ids_to_arrow(self.high[rows], self.low[rows])


def _of_partition(context: TaskContext, shared: dict[str, Any], number: int) -> list[pa.Table]:
    """The rows of a partition in source order; of a bucket that is wider than the partition, only its own."""
    bits, bucket_bits = shared["bits"], shared["bucket_bits"]
    first = number << (bucket_bits - bits) if bits <= bucket_bits else number >> (bits - bucket_bits)
    stop = first + (1 << max(0, bucket_bits - bits))
    tables = list(read_buckets(context.step_directory, shared["runs"], first, stop, context.scratch))
    if bits <= bucket_bits:
        return tables
    ours = [table.column(HIGH).to_numpy() >> np.uint64(64 - bits) == number for table in tables]
    return [table.filter(pa.array(mask)) for table, mask in zip(tables, ours, strict=True)]


def _numbers(tables: list[pa.Table], column: str) -> np.ndarray:
    parts = [table.column(column).to_numpy() for table in tables]
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _gathered(
    tables: list[pa.Table], kept: np.ndarray, source: str, schema: pa.Schema, columns: dict[str, str | None]
) -> Iterator[pa.Table]:
    """The kept rows in the order of `kept`, as the output's columns, some 16 MiB at a time."""
    if not len(kept):
        return
    parts, places = _only(tables, kept)
    whole = pa.concat_tables([_output_columns(part, source, schema, columns) for part in parts]).combine_chunks()
    rows = max(1, GATHER_BYTES * len(kept) // max(1, whole.nbytes))
    for start in range(0, len(kept), rows):
        yield whole.take(pa.array(places[start : start + rows]))


def _only(tables: list[pa.Table], kept: np.ndarray) -> tuple[list[pa.Table], np.ndarray]:
    """The tables without the rows that are not in `kept`, and `kept` counted in what is left."""
    rows = sum(table.num_rows for table in tables)
    if rows == len(kept):
        return tables, kept
    stays = np.zeros(rows, bool)
    stays[kept] = True
    parts, start = [], 0
    for table in tables:
        parts.append(table.filter(pa.array(stays[start : start + table.num_rows])))
        start += table.num_rows
    return parts, (np.cumsum(stays) - 1)[kept]


def _output_columns(table: pa.Table, source: str, schema: pa.Schema, columns: dict[str, str | None]) -> pa.Table:
    high, low = table.column(HIGH).to_numpy(), table.column(LOW).to_numpy()
    have = set(table.column_names)
    arrays: list[Any] = []
    for field in schema:
        upstream = columns.get(field.name)
        if field.name == "id":
            arrays.append(ids_to_arrow(high, low))
        elif field.name == "text":
            arrays.append(table.column(TEXT))
        elif field.name == "source":
            arrays.append(pa.repeat(pa.scalar(source, pa.string()), table.num_rows))
        elif upstream is not None and UPSTREAM + upstream in have:
            arrays.append(_fitted(table.column(UPSTREAM + upstream), field.type))
        else:
            arrays.append(pa.nulls(table.num_rows, field.type))
    return pa.table(arrays, schema=schema)


def _fitted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([fit(chunk, kind) for chunk in column.chunks], kind)


def _write(url: str, schema: pa.Schema, documents: Iterator[pa.Table]) -> tuple[ShardInfo, int]:
    text_bytes = 0
    with ShardWriter(url, schema, dictionary=["source"]) as writer:
        for table in documents:
            text_bytes += sum(int(np.diff(string_buffers(chunk)[1]).sum()) for chunk in table.column("text").chunks)
            writer.write(table)
    return writer.info, text_bytes


def _duplicates(tables: list[pa.Table], order: Order, source_id: str | None) -> pa.Table:
    """A row for each document that leaves, by (id, position): its id, its source_id, that of the one that stays."""
    name = UPSTREAM + source_id if source_id is not None else None
    parts = [
        _fitted(table.column(name), pa.string())
        if name is not None and name in table.column_names
        else pa.chunked_array([pa.nulls(table.num_rows, pa.string())])
        for table in tables
    ]
    names = pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.string()).combine_chunks()
    stays = names.take(pa.array(order.stays_for_left))
    columns = [order.ids(order.left), names.take(pa.array(order.left)), stays]
    return pa.table(columns, schema=DUPLICATES)


def _write_duplicates(context: TaskContext, path: str, table: pa.Table) -> OutputFile:
    with ShardWriter(urls.join(context.step_directory, path), DUPLICATES) as writer:
        writer.write(table)
    return OutputFile(path, writer.info.bytes, writer.info.xxh3, writer.info.rows)
