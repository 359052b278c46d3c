"""Sorts one partition by id, keeps the first of each set of equal texts, writes the kept rows as Parquet, and lists the
exact duplicates. The rows of a range of ids are read from the exchange (memory-mapped) in source order, block by block.
Of several equal texts, the first one in the source is kept (`first_copies.py`). The others are not held in memory, so a
text may have any number of copies. The columns that the lists of origins and duplicates need are sorted block by block
and merged (`sorted_blocks.py`); if there is more than one block, the blocks are written to scratch files. The texts of
kept rows stay in the mapped files until they are gathered, one row group of the output at a time
(`scattered_rows.py`); so they are copied once, into memory that the previous row group used.

Cost: half of it is writing Parquet with zstd-1 (0.6 s of CPU time for 125 MB of text). Memory: one row group, about 150
MiB for a block, 16 bytes for each string of a kept row, and the columns that do not hold strings. If most rows of a
table that was read are duplicates or belong to other partitions, a copy of its other rows is held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.engine.exchange.exchange import read_buckets
from datakit.engine.exchange.scattered_rows import ScatteredRows
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
from datakit.storage.parquet import LEVEL_BETWEEN_STAGES, ShardInfo, ShardWriter, row_groups
from datakit.storage.row_size import row_sizes
from datakit.text.string_buffers import string_buffers

PHASE = "sort"
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

    def chosen(self, these: np.ndarray) -> tuple[pa.Table, np.ndarray]:
        """Return a table and the indexes in it of the rows of the partition with the indexes `these`, which ascend. The
        table is a copy of only these rows if they are a small part of the rows that were read: it is held together with
        the converted columns of all of its rows, and most rows may be copies of a text.
        """
        wanted = these if self.inside is None else self.inside[these]
        if 2 * len(wanted) >= self.rows.num_rows:
            return self.rows, wanted
        mask = np.zeros(self.rows.num_rows, bool)
        mask[wanted] = True
        return self.rows.filter(pa.array(mask)), np.arange(len(wanted))


class _Found:
    """The rows read so far. rows: the id, origin and source id of every row. first: the ids of the kept rows. kept: the
    kept rows, in source order: tables, and the indexes of the kept rows in each.
    """

    def __init__(self, rows: SortedBlocks) -> None:
        self.rows, self.first = rows, FirstCopies()
        self.kept: list[tuple[pa.Table, np.ndarray]] = []

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


def _gathered(kept: Sequence[tuple[pa.Table, np.ndarray]], places: np.ndarray, output: _Output) -> Iterator[pa.Table]:
    """Yield output rows in the order of `places`, which holds their indexes among the kept rows in source order. Each
    yielded table is a row group of the output.
    """
    if not len(places):
        return
    starts = np.cumsum([0, *(table.num_rows for table, _ in kept)])
    kept_rows = np.concatenate([start + rows for start, (_, rows) in zip(starts[:-1], kept, strict=True)])
    tables = [output.rows(table) for table, _ in kept]
    rows, sizes = ScatteredRows(tables), np.concatenate([row_sizes(table) for table in tables])
    order = kept_rows[places]
    for first, stop in row_groups(sizes[order]):
        yield rows.take(order[first:stop])


def _write(url: str, output: _Output, documents: Iterator[pa.Table]) -> tuple[ShardInfo, int]:
    text_bytes = 0
    with ShardWriter(url, output.schema, dictionary=["source"], level=LEVEL_BETWEEN_STAGES) as writer:
        for table in documents:
            text_bytes += sum(int(np.diff(string_buffers(chunk)[1]).sum()) for chunk in table.column("text").chunks)
            writer.write(table)
    return writer.info, text_bytes
