"""Sorts one partition by id, keeps the first of each set of equal texts, writes the kept rows as Parquet, and lists the
exact duplicates. The rows of a range of ids are read from the exchange (memory-mapped) in source order and sorted by id
with a stable sort. Therefore, of several equal texts, the first one in the source is kept. The other texts are not
read, unless the partition shares its bucket with other partitions, whose rows must first be filtered out. The output is
cut into row groups while it is gathered. The rows are held in pieces of 1 GiB, because a single Arrow array cannot hold
more than 2 GiB of strings.

Cost: mostly zstd (150 to 250 MB/s of text per core). Memory: one copy of the partition's kept rows, or two if
duplicates or rows of other partitions had to be dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.engine.exchange.exchange import read_buckets
from datakit.engine.exchange.run_file import windows
from datakit.engine.task import OutputFile, TaskContext, TaskResult
from datakit.normalize.columns.schema_union import fit_column
from datakit.normalize.origins import Origins, duplicates_path, write_origins
from datakit.normalize.phase_data import SortDetails, SortShared, to_plain
from datakit.normalize.route import FILE, HIGH, LOW, POSITION, TEXT, UPSTREAM
from datakit.storage import urls
from datakit.storage.ids import HEX_DIGITS, ids_to_arrow, partition_name, top_bits
from datakit.storage.manifest import data_path
from datakit.storage.parquet import ShardInfo, ShardWriter
from datakit.storage.row_size import row_sizes
from datakit.text.string_buffers import string_buffers

PHASE = "sort"
GATHER_BYTES = 16 << 20  # maximum size of the rows gathered at a time; limits the size of the copy made for writing
PIECE_BYTES = 1 << 30  # maximum size of the rows in a piece; half of what an array's 32-bit offsets can address
CONVERTED_ROWS = 1 << 23  # rows converted at a time; few enough for 32-bit offsets into their ids and source names
DUPLICATES = pa.schema([("id", pa.string()), ("source_id", pa.string()), ("kept_source_id", pa.string())])


def sort_partition(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write one partition, its origins and, if it has duplicates, a list of them."""
    number, common = arguments["partition"], msgspec.convert(shared, SortShared)
    tables = _read_partition(context, common, number)
    order = SortedIds.of(*_columns(tables, HIGH, LOW))
    output = _Output.of(common)
    name = partition_name(number, 1 << common.bits)
    path = data_path(common.source, name)
    info, text_bytes = _write(urls.join(context.step_directory, path), output, _gathered(tables, order.kept, output))
    places = _columns(tables, FILE, POSITION)
    high, low, file, position = (values[order.rows] for values in (order.high, order.low, *places))
    origins = write_origins(context, name, Origins(high, low, file, position, order.first))
    files = [OutputFile(path, info.bytes, info.xxh3, info.rows), origins]
    if len(order.duplicates):
        path = duplicates_path(name)
        with ShardWriter(urls.join(context.step_directory, path), DUPLICATES) as writer:
            for table in _duplicates(tables, order, output.upstream.get("source_id")):
                writer.write(table)
        files.append(OutputFile(path, writer.info.bytes, writer.info.xxh3, writer.info.rows))
    ids = order.ids(order.kept[[0, -1]]).to_pylist() if info.rows else [None, None]
    counters = {"normalize/records_out": info.rows, "normalize/duplicates": len(order.duplicates)}
    details = to_plain(SortDetails(text_bytes, first_id=ids[0], last_id=ids[1]))
    return TaskResult(tuple(files), counters, details, records=len(order.high))


@dataclass(frozen=True)
class SortedIds:
    """The rows of a partition in the order of their ids, as row indexes (int64). Equal ids keep their source order.

    high, low: uint64 [N], the id of each row. rows: all rows. first: bool [N], True where a new id begins in `rows`.
    kept: the first row with each id. duplicates: the other rows.
    kept_for_duplicates: for each duplicate, the row that is kept instead.
    """

    high: np.ndarray
    low: np.ndarray
    rows: np.ndarray
    first: np.ndarray
    kept: np.ndarray
    duplicates: np.ndarray
    kept_for_duplicates: np.ndarray

    @classmethod
    def of(cls, high: np.ndarray, low: np.ndarray) -> SortedIds:
        """Sort ids, given as their high and low halves, uint64 [N] each."""
        rows = np.lexsort((low, high))  # stable
        first = np.ones(len(rows), bool)
        first[1:] = (np.diff(high[rows]) != 0) | (np.diff(low[rows]) != 0)
        kept = rows[first]
        return cls(high, low, rows, first, kept, rows[~first], kept[np.cumsum(first) - 1][~first])

    def ids(self, rows: np.ndarray) -> pa.StringArray:
        """Return the ids of these rows as text (32 hex digits)."""
        return ids_to_arrow(self.high[rows], self.low[rows])


@dataclass(frozen=True)
class _Output:
    """The form of the output. upstream: output column -> the upstream column that it comes from, if any."""

    schema: pa.Schema
    source: str
    upstream: dict[str, str | None]

    @classmethod
    def of(cls, shared: SortShared) -> _Output:
        schema = pa.ipc.read_schema(pa.BufferReader(shared.schema))
        return cls(schema, shared.source, {column.name: column.upstream for column in shared.columns})

    def rows(self, table: pa.Table) -> pa.Table:
        """Convert rows of the exchange to output rows."""
        have = set(table.column_names)
        arrays: list[Any] = []
        for field in self.schema:
            upstream = self.upstream.get(field.name)
            if field.name == "id":
                arrays.append(ids_to_arrow(table.column(HIGH).to_numpy(), table.column(LOW).to_numpy()))
            elif field.name == "text":
                arrays.append(table.column(TEXT))
            elif field.name == "source":
                arrays.append(pa.repeat(pa.scalar(self.source, pa.string()), table.num_rows))
            elif upstream is not None and UPSTREAM + upstream in have:
                arrays.append(fit_column(table.column(UPSTREAM + upstream), field.type))
            else:
                arrays.append(pa.nulls(table.num_rows, field.type))
        return pa.table(arrays, schema=self.schema)


def _read_partition(context: TaskContext, shared: SortShared, number: int) -> list[pa.Table]:
    """Read the rows of a partition in source order, without the rows of other partitions that share its bucket."""
    bits, bucket_bits = shared.bits, shared.bucket_bits
    first = number << (bucket_bits - bits) if bits <= bucket_bits else number >> (bits - bucket_bits)
    stop = first + (1 << max(0, bucket_bits - bits))
    tables = list(read_buckets(context.step_directory, shared.runs, first, stop, context.scratch))
    if bits <= bucket_bits:
        return tables
    masks = [top_bits(table.column(HIGH).to_numpy(), 1 << bits) == number for table in tables]
    return [table.filter(pa.array(mask)) for table, mask in zip(tables, masks, strict=True)]


def _columns(tables: list[pa.Table], *names: str) -> list[np.ndarray]:
    parts = [[table.column(name).to_numpy() for table in tables] for name in names]
    return [np.concatenate(arrays) if arrays else np.empty(0, np.uint64) for arrays in parts]


def _gathered(tables: list[pa.Table], kept: np.ndarray, output: _Output) -> Iterator[pa.Table]:
    """Yield the kept rows as output rows, in the order of `kept`: at most 16 MiB, or one larger row, at a time."""
    if not len(kept):
        return
    parts, places = _only(tables, kept)
    pieces, sizes = _pieces(parts, output)
    for first, stop in windows(sizes[places], GATHER_BYTES):
        yield _taken(pieces, places[first:stop])


def _pieces(parts: list[pa.Table], output: _Output) -> tuple[list[pa.Table], np.ndarray]:
    """Return the rows as output rows, in tables of at most PIECE_BYTES (or of one row), and each row's size (bytes)."""
    slices = [part.slice(at, CONVERTED_ROWS) for part in parts for at in range(0, part.num_rows, CONVERTED_ROWS)]
    rows = pa.concat_tables([output.rows(part) for part in slices])
    sizes = row_sizes(rows)
    spans = windows(sizes, PIECE_BYTES)
    return [rows.slice(first, stop - first).combine_chunks() for first, stop in spans], sizes


def _taken(pieces: list[pa.Table], rows: np.ndarray) -> pa.Table:
    """Return these rows of the concatenated pieces, in the order given."""
    if len(pieces) == 1:
        return pieces[0].take(pa.array(rows))
    starts = np.cumsum([0, *(piece.num_rows for piece in pieces)])
    order = np.argsort(rows, kind="stable")
    cuts = np.searchsorted(rows[order], starts[1:-1])
    wanted = zip(pieces, starts[:-1], np.split(rows[order], cuts), strict=True)
    found = pa.concat_tables([piece.take(pa.array(mine - start)) for piece, start, mine in wanted]).combine_chunks()
    back = np.empty(len(rows), np.int64)
    back[order] = np.arange(len(rows))
    return found.take(pa.array(back))


def _only(tables: list[pa.Table], kept: np.ndarray) -> tuple[list[pa.Table], np.ndarray]:
    """Return the tables with only the rows in `kept`, and `kept` converted to row indexes in these tables."""
    rows = sum(table.num_rows for table in tables)
    if rows == len(kept):
        return tables, kept
    mask = np.zeros(rows, bool)
    mask[kept] = True
    masks = np.split(mask, np.cumsum([table.num_rows for table in tables])[:-1])
    parts = [table.filter(pa.array(part)) for table, part in zip(tables, masks, strict=True)]
    return parts, (np.cumsum(mask) - 1)[kept]


def _write(url: str, output: _Output, documents: Iterator[pa.Table]) -> tuple[ShardInfo, int]:
    text_bytes = 0
    with ShardWriter(url, output.schema, dictionary=["source"]) as writer:
        for table in documents:
            text_bytes += sum(int(np.diff(string_buffers(chunk)[1]).sum()) for chunk in table.column("text").chunks)
            writer.write(table)
    return writer.info, text_bytes


def _duplicates(tables: list[pa.Table], order: SortedIds, source_id: str | None) -> Iterator[pa.Table]:
    """Yield tables of the duplicates (id, source_id, and the kept document's source_id), sorted by id and position."""
    name = UPSTREAM + source_id if source_id is not None else None
    parts = [
        fit_column(table.column(name), pa.large_string())
        if name is not None and name in table.column_names
        else pa.chunked_array([pa.nulls(table.num_rows, pa.large_string())])
        for table in tables
    ]
    names = pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.large_string()).combine_chunks()
    lengths = np.diff(string_buffers(names)[1])
    sizes = HEX_DIGITS + lengths[order.duplicates] + lengths[order.kept_for_duplicates]
    for first, stop in windows(sizes, GATHER_BYTES):
        mine, kept = order.duplicates[first:stop], order.kept_for_duplicates[first:stop]
        columns = [order.ids(mine), *(names.take(pa.array(rows)).cast(pa.string()) for rows in (mine, kept))]
        yield pa.table(columns, schema=DUPLICATES)
