"""Reads Parquet files, and quarantines the rows of damaged row groups and files.

The number of rows in a batch is chosen so that a batch takes about 8 MiB, according to the file's metadata. If a batch
cannot be decoded, or decoding it exhausts the memory, the rest of its row group is decoded row by row (see
`row_by_row.py`). The first row that cannot be decoded is lost with all later rows of the row group; if the footer is
unreadable, all rows of the file are lost. In either case, a quarantine entry gives the index of the first lost row. A
row that is larger than `longest_record` allows is quarantined. A column that is not needed is not decoded at all.

Cost: 500 to 900 MB/s of text per core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from datakit.normalize.formats import PARQUET, check_head
from datakit.normalize.readers.base import Chunks, ReadContext
from datakit.normalize.readers.columnar.row_by_row import ALL, ImpassableError, open_with_dictionaries, row_by_row
from datakit.normalize.readers.columnar.tables import (
    DAMAGE,
    chunks_of,
    raise_unless_damage,
    require_columns,
    rows_per_batch,
)
from datakit.normalize.readers.sound_arrays import check_arrays
from datakit.normalize.readers.streams import HEAD_BYTES


def read_parquet(context: ReadContext, path: str, start: int = 0, stop: int | None = None) -> Chunks:
    """Yield the rows of row groups [start, stop) or, if `stop` is None, of group `start` and all later ones. Raises
    UnreadableError, ColumnError or StorageError.
    """
    with context.inputs.open(path) as source:
        file = open_parquet(source, path)
        if file is None:
            context.counts.unreadable(path, 0, "its footer cannot be read, so none of its rows can")
            return
        with file:
            metadata = file.metadata
            require_columns(path, metadata.num_rows, metadata.num_columns)
            sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            borders = [0, *accumulate(sizes)]
            for group in range(start, metadata.num_row_groups if stop is None else stop):
                yield from _RowGroup(context, path, source, file, group, range(*borders[group : group + 2])).chunks()


def open_parquet(source: BinaryIO, path: str) -> pq.ParquetFile | None:
    """Open a Parquet file, or return None if its footer is damaged. Raises UnreadableError for another file format."""
    check_head(path, source.read(HEAD_BYTES), PARQUET)
    try:
        return pq.ParquetFile(source, page_checksum_verification=True)
    except DAMAGE as error:
        raise_unless_damage(error, path)
        return None


@dataclass
class _RowGroup:
    """A row group that is being read. rows: the indexes of its rows in the file."""

    context: ReadContext
    path: str
    source: BinaryIO
    file: pq.ParquetFile
    number: int
    rows: range

    def __post_init__(self) -> None:
        self.next_row = self.rows.start

    def chunks(self) -> Chunks:
        """Yield the rows: in batches or, if an earlier attempt died in these rows or a batch cannot be decoded, one by
        one."""
        task, end = self.context.task, self.rows.stop
        task.hold(self.path, self.rows.start, len(self.rows))
        places = {place for name, place in (*task.try_singly, *task.skip) if name == self.path}
        try:
            if ALL not in task.try_singly and places.isdisjoint(self.rows):
                yield from self._until_damage(self._batches())
            # Rows remain if no batches were decoded because an earlier attempt died, or if the batches ended early: at
            # damage or, if the columns of the row group differ in length, without an error.
            if self.next_row < end:
                yield from self._until_damage(self._single_rows())
        except ImpassableError as error:
            self.context.counts.unreadable(self.path, error.row, task.skip[self.path, error.row])
            self.next_row = error.row + 1
            reason = f"after row {error.row}, past which the row group cannot be decoded; `drop` can omit large columns"
        else:
            reason = f"row group {self.number} cannot be decoded to its end"
        if self.next_row < end:
            self.context.counts.unreadable(self.path, self.next_row, reason, end - self.next_row)

    def _until_damage(self, tables: Iterator[pa.Table]) -> Chunks:
        """Yield the rows of the tables, which start at row `next_row`, up to the first error in decoding them."""
        while True:
            try:
                table = next(tables, None)
            except DAMAGE as error:
                raise_unless_damage(error, self.path)
                return
            if table is None:
                return
            yield from chunks_of(self.context, self.path, table, self.next_row)
            self.next_row += table.num_rows
            self.context.task.hold(self.path, self.next_row, self.rows.stop - self.next_row)

    def _batches(self) -> Iterator[pa.Table]:
        size = self.file.metadata.row_group(self.number).total_byte_size
        for batch in self._decode(self.file, rows_per_batch(size, len(self.rows))):
            table = pa.Table.from_batches([batch])
            check_arrays(table)
            yield table

    def _single_rows(self) -> Iterator[pa.Table]:
        """Yield the rows from `next_row` on, after decoding the earlier rows of the row group again."""
        file = open_with_dictionaries(self.source, self.file, self.number)
        batches = self._decode(file, 1)
        for row in range(self.rows.start, self.next_row):
            self.context.task.hold(self.path, row, 1)
            next(batches, None)
        rows = range(self.next_row, self.rows.stop)
        yield from row_by_row(self.context.task, self.path, batches, rows, self.file.schema_arrow)

    def _decode(self, file: pq.ParquetFile, rows: int) -> Iterator[pa.RecordBatch]:
        names = [name for name in file.schema_arrow.names if self.context.choice.reads(name)]
        return file.iter_batches(rows, row_groups=[self.number], columns=names or None, use_threads=False)
