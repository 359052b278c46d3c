"""Sorts one partition by id, keeps the first of each set of equal texts, writes the kept rows as Parquet, and lists the
exact duplicates. The rows of a range of ids are read from the exchange (memory-mapped) in source order, block by block.
Of several equal texts, the first one in the source is kept (`first_copies.py`). The others are not held in memory, so a
text may have any number of copies. The columns that the lists of origins and duplicates need are sorted block by block
and merged (`sorted_blocks.py`); if there is more than one block, the blocks are written to scratch files. The output is
cut into row groups while it is gathered. The kept rows are held in pieces of 1 GiB, because a single Arrow array cannot
hold more than 2 GiB of strings.

Cost: mostly zstd (150 to 250 MB/s of text per core). Memory: one copy of the partition's kept rows, or two if
duplicates or rows of other partitions had to be dropped, and about 150 MiB for a block.
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
from datakit.engine.exchange.sorted_blocks import SortedBlocks, stable_order
from datakit.engine.task import OutputFile, TaskContext, TaskResult
from datakit.normalize import duplicates
from datakit.normalize.columns.schema_union import fit_column
from datakit.normalize.first_copies import FirstCopies
from datakit.normalize.origins import write_origins
from datakit.normalize.phase_data import SortDetails, SortShared, to_plain
from datakit.normalize.route import HIGH, LOW, TEXT, UPSTREAM
from datakit.storage import urls
from datakit.storage.ids import ids_to_arrow, partition_name, top_bits
from datakit.storage.manifest import data_path
from datakit.storage.parquet import ShardInfo, ShardWriter
from datakit.storage.row_size import row_sizes
from datakit.text.string_buffers import string_buffers

PHASE = "sort"
GATHER_BYTES = 16 << 20  # maximum size of the rows gathered at a time; limits the size of the copy made for writing
PIECE_BYTES = 1 << 30  # maximum size of the rows in a piece; half of what an array's 32-bit offsets can address
CONVERTED_ROWS = 1 << 23  # rows converted at a time; few enough for 32-bit offsets into their ids and source names
BLOCK_BYTES = 32 << 20  # size of the ids, origins and source ids in a block
ADDED_ROWS = 1 << 16  # maximum number of rows added to a block at a time
IDS = (HIGH, LOW)


def sort_partition(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write one partition, its origins and, if it has duplicates, a list of them."""
    number, common = arguments["partition"], msgspec.convert(shared, SortShared)
    output, found = _Output.of(common), _Found(SortedBlocks(IDS, context.scratch))
    for block in _blocks(context, common, number, output.upstream.get("source_id")):
        found.add(block)
        context.report(found.rows.count, 0)
    name, kept = partition_name(number, 1 << common.bits), found.first.all()
    path = data_path(common.source, name)
    info, text_bytes = _write(
        urls.join(context.step_directory, path), output, _gathered(found.kept, kept.place, output)
    )
    files = [OutputFile(path, info.bytes, info.xxh3, info.rows)]
    files.append(write_origins(context, name, duplicates.origins(found.rows)))
    if found.rows.count > info.rows:
        files.append(duplicates.write_duplicates(context, name, found.rows))
    ids = ids_to_arrow(kept.high[[0, -1]], kept.low[[0, -1]]).to_pylist() if info.rows else [None, None]
    counters = {"normalize/records_out": info.rows, "normalize/duplicates": found.rows.count - info.rows}
    details = to_plain(SortDetails(text_bytes, first_id=ids[0], last_id=ids[1]))
    return TaskResult(tuple(files), counters, details, records=found.rows.count)


@dataclass(frozen=True)
class _Rows:
    """Some rows of the exchange, which is mapped into memory. inside: the indexes of the rows in the partition, or None
    if all rows are in it. about: the result of `duplicates.about` for the rows in the partition.
    """

    rows: pa.Table
    inside: np.ndarray | None
    about: pa.Table

    def chosen(self, these: np.ndarray) -> pa.Table:
        """Return the rows of the partition with these indexes, which ascend and refer to `about`."""
        if len(these) == self.rows.num_rows:
            return self.rows
        mask = np.zeros(self.rows.num_rows, bool)
        mask[these if self.inside is None else self.inside[these]] = True
        return self.rows.filter(pa.array(mask))


class _Found:
    """The rows read so far. rows: the id, origin and source id of every row. first: the ids of the kept rows. kept: the
    kept rows, in source order.
    """

    def __init__(self, rows: SortedBlocks) -> None:
        self.rows, self.first = rows, FirstCopies()
        self.kept: list[pa.Table] = []

    def add(self, block: list[_Rows]) -> None:
        """Add a block of rows."""
        about = pa.concat_tables([part.about for part in block]).combine_chunks()
        high, low = (about.column(name).to_numpy() for name in IDS)
        order = stable_order((high, low))
        high, low = high[order], low[order]
        first = duplicates.changes(high, low)
        kept = self.first.add(high[first], low[first], order[first])
        self.rows.add(about.take(pa.array(order)).combine_chunks())
        start = 0
        for part in block:
            stop = start + part.about.num_rows
            here = kept[slice(*np.searchsorted(kept, [start, stop]))] - start
            if len(here):
                self.kept.append(part.chosen(here))
            start = stop


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


def _parts(context: TaskContext, shared: SortShared, number: int, source_id: str | None) -> Iterator[_Rows]:
    """Yield the rows of a partition in source order, in parts of at most ADDED_ROWS rows. The rows of other partitions
    that share its bucket are not copied, and neither are the partition's own, as most of them may be copies of a text.
    """
    bits, bucket_bits = shared.bits, shared.bucket_bits
    first = number << (bucket_bits - bits) if bits <= bucket_bits else number >> (bits - bucket_bits)
    stop = first + (1 << max(0, bucket_bits - bits))
    for table in read_buckets(context.step_directory, shared.runs, first, stop, context.scratch):
        for start in range(0, table.num_rows, ADDED_ROWS):
            rows = table.slice(start, ADDED_ROWS)
            about = duplicates.about(rows, source_id)
            if bits <= bucket_bits:
                yield _Rows(rows, None, about)
                continue
            inside = top_bits(rows.column(HIGH).to_numpy(), 1 << bits) == number
            yield _Rows(rows, np.flatnonzero(inside), about.filter(pa.array(inside)))


def _blocks(context: TaskContext, shared: SortShared, number: int, source_id: str | None) -> Iterator[list[_Rows]]:
    """Yield the rows of a partition in blocks whose `about` tables take about BLOCK_BYTES."""
    block, size = list[_Rows](), 0
    for part in _parts(context, shared, number, source_id):
        if part.about.num_rows:
            block.append(part)
            size += int(row_sizes(part.about).sum())
        if size >= BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def _gathered(tables: list[pa.Table], places: np.ndarray, output: _Output) -> Iterator[pa.Table]:
    """Yield output rows in the order of `places`, which holds their indexes in the concatenated tables. Each yielded
    table has at most 16 MiB, or one larger row.
    """
    if not len(places):
        return
    pieces, sizes = _pieces(tables, output)
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


def _write(url: str, output: _Output, documents: Iterator[pa.Table]) -> tuple[ShardInfo, int]:
    text_bytes = 0
    with ShardWriter(url, output.schema, dictionary=["source"]) as writer:
        for table in documents:
            text_bytes += sum(int(np.diff(string_buffers(chunk)[1]).sum()) for chunk in table.column("text").chunks)
            writer.write(table)
    return writer.info, text_bytes
