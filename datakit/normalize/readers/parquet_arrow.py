"""Reads Parquet and Arrow files, decides how many rows are decoded at once, and quarantines damaged row groups and
files. The number of rows is chosen so that a batch takes about 8 MiB, according to the file's metadata. If a row group
fails to decode, its remaining rows are lost; if the footer is unreadable, all rows of the file are lost. In either
case, a quarantine entry gives the index of the first lost row. A row that is larger than `max_document_bytes` is
quarantined.

A few bytes of a Parquet file may expand to a cell of many GB. If decoding a row group exhausts the memory, the rows are
decoded one by one, to identify the row at fault. pyarrow cannot pass over such a row without decoding it. If the
machine does not have enough memory for that, the row is quarantined together with all later rows of its row group. A
column in `drop` is not decoded at all. Neither format guarantees that strings are valid UTF-8, so invalid ones are
repaired here, except in the text column, for which the text rules do this.

Cost: Parquet is decoded at 500 to 900 MB/s of text per core; Arrow files are memory-mapped.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datakit.engine.task import ALL_RECORDS, TaskContext
from datakit.errors import ColumnError, StorageError
from datakit.normalize.columns.schema_union import plain
from datakit.normalize.formats import ARROW, PARQUET, check_head
from datakit.normalize.readers.base import (
    Chunk,
    Chunks,
    ReadContext,
    longest_record,
    require_unique_columns,
    without_columns,
)
from datakit.normalize.readers.sound_arrays import check_arrays
from datakit.normalize.readers.streams import HEAD_BYTES
from datakit.normalize.readers.valid_strings import with_valid_strings
from datakit.storage import urls
from datakit.storage.row_size import row_sizes

BATCH_BYTES = 8 << 20  # about the size of a decoded batch; equal to two chunks of JSON Lines
SINGLY_BYTES = 64 << 20  # limits a table of rows decoded singly; exceeds BATCH_BYTES, as metadata may understate sizes
MOST_ROWS = 65_536  # maximum number of rows per batch; pyarrow's own default for iter_batches
STREAM_HEAD = b"\xff\xff\xff\xff"
STREAM_END = STREAM_HEAD + bytes(4)
ALL = (ALL_RECORDS.file, ALL_RECORDS.position)
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)  # the last one is raised for a column name that is not UTF-8


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
            _require_columns(path, metadata.num_rows, metadata.num_columns)
            row = sum(metadata.row_group(group).num_rows for group in range(start))
            for group in range(start, metadata.num_row_groups if stop is None else stop):
                yield from _row_group(context, path, file, group, row)
                row += metadata.row_group(group).num_rows


def _row_group(context: ReadContext, path: str, file: pq.ParquetFile, group: int, row: int) -> Chunks:
    info, task = file.metadata.row_group(group), context.task
    end = row + info.num_rows
    rows = _rows(info.total_byte_size, info.num_rows)
    places = [*task.try_singly, *task.skip]
    singly = ALL in task.try_singly or any(name == path and row <= place < end for name, place in places)
    columns = [name for name in file.schema_arrow.names if name not in context.config.drop]
    decode = partial(file.iter_batches, row_groups=[group], columns=columns or None, use_threads=False)
    tables = _one_by_one(task, path, decode(1), range(row, end), rows) if singly else map(_table, decode(rows))
    task.hold(path, row, info.num_rows)
    try:
        for table in tables:
            size = table.num_rows
            yield from _chunk(context, path, table, row)
            row += size
            task.hold(path, row, end - row)
        if row != end:  # if columns differ in length, pyarrow stops at the end of the shortest one without an error
            raise pa.ArrowInvalid(f"{end - row} rows missing")
    except _ImpassableError as error:
        context.counts.unreadable(path, error.row, task.skip[path, error.row])
        if error.row + 1 < end:
            reason = f"after row {error.row}, past which the row group cannot be decoded; `drop` can omit large columns"
            context.counts.unreadable(path, error.row + 1, reason, end - error.row - 1)
    except _DAMAGE as error:
        _raise_unless_damage(error, path)
        context.counts.unreadable(path, row, f"row group {group} cannot be decoded to its end", max(1, end - row))


class _ImpassableError(Exception):
    """Decoding ends at a row to be skipped: no row follows it, or two attempts died while it was decoded."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def _table(*batches: pa.RecordBatch) -> pa.Table:
    table = pa.Table.from_batches(batches)
    return table.combine_chunks() if len(batches) > 1 and table.nbytes < 2 * SINGLY_BYTES else table


def _one_by_one(
    task: TaskContext, path: str, batches: Iterator[pa.RecordBatch], places: range, rows: int
) -> Iterator[pa.Table]:
    """Announce and decode the rows in `places` one by one; yield tables of `rows` rows, or of fewer if they are large.

    Raises _ImpassableError at a row to be skipped if no row follows, or if two attempts died while it was decoded.
    """
    pending: list[pa.RecordBatch] = []
    size = 0
    for place in places:
        if (path, place) in task.skip and (place == places[-1] or {(path, place), ALL} <= task.try_singly):
            if pending:
                yield _table(*pending)
            raise _ImpassableError(place)
        task.hold(path, place, places[-1] + 1 - place if (path, place) in task.skip else 1)
        batch = next(batches, None)
        if batch is None:
            break
        pending.append(batch)
        size += batch.nbytes
        if len(pending) == rows or size >= SINGLY_BYTES:
            yield _table(*pending)
            pending, size = [], 0
    if pending:
        yield _table(*pending)


def open_parquet(source: BinaryIO, path: str) -> pq.ParquetFile | None:
    """Open a Parquet file, or return None if its footer is damaged. Raises UnreadableError for another kind of file."""
    check_head(path, source.read(HEAD_BYTES), PARQUET)
    try:
        return pq.ParquetFile(source, page_checksum_verification=True)
    except _DAMAGE as error:
        _raise_unless_damage(error, path)
        return None


def _require_columns(path: str, rows: int, columns: int) -> None:
    """Raise ColumnError if a file has rows but no columns, because pyarrow would read no rows from it."""
    if rows and not columns:
        raise ColumnError(f"{path} has {rows} rows but no columns; exclude it, or write it again with its columns")


def _rows(size: int, rows: int) -> int:
    return min(MOST_ROWS, max(1, BATCH_BYTES * rows // max(1, size)))


def read_arrow(context: ReadContext, path: str) -> Chunks:
    """Yield the rows of an Arrow IPC file or stream. Raises UnreadableError, ColumnError or StorageError."""
    with context.inputs.open(path) as source:
        head = source.read(HEAD_BYTES)
        if not head.startswith(STREAM_HEAD):
            check_head(path, head, ARROW)
        row = 0
        try:
            for batch in _arrow_batches(_mapped(context, path, source), head):
                _require_columns(path, batch.num_rows, batch.num_columns)
                for start in range(0, batch.num_rows, step := _rows(batch.nbytes, batch.num_rows)):
                    part = _table(batch.slice(start, step))
                    size = part.num_rows
                    yield from _chunk(context, path, part, row)
                    row += size
        except _DAMAGE as error:
            _raise_unless_damage(error, path)
            context.counts.unreadable(path, row, "what follows cannot be decoded")
            return
        if head.startswith(STREAM_HEAD) and not _stream_ends(source):
            context.counts.unreadable(path, row, "the stream ends without its end-of-stream marker; the rest is lost")


def _stream_ends(source: BinaryIO) -> bool:
    """Return True if a stream ends with the end-of-stream marker. pyarrow reads a truncated stream without an error."""
    source.seek(-len(STREAM_END), os.SEEK_END)
    return source.read() == STREAM_END


def _mapped(context: ReadContext, path: str, source: BinaryIO) -> Any:
    """Return a memory map of a local file, or the open file `source` if it is remote."""
    if not urls.is_local(context.inputs.base):
        source.seek(0)
        return source
    context.inputs.keep_watching(path)
    return pa.BufferReader(pa.py_buffer(mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)))


def _arrow_batches(source: Any, head: bytes) -> Iterator[pa.RecordBatch]:
    if head.startswith(STREAM_HEAD):
        yield from pa.ipc.open_stream(source)
    else:
        with pa.ipc.open_file(source) as reader:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)


def _raise_unless_damage(error: BaseException, path: str) -> None:
    """Raise an error if the machine, rather than the file, is at fault.

    pyarrow's error for a failed allocation is both an ArrowException and a MemoryError; it is no sign of damage.
    """
    if isinstance(error, MemoryError):
        raise error
    if isinstance(error, OSError) and error.errno is not None:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error


def _chunk(context: ReadContext, path: str, table: pa.Table, row: int) -> Chunks:
    """Yield the rows as one chunk; the first row has index `row` in the file. Quarantine rows that are too long."""
    size = table.nbytes
    check_arrays(table)
    require_unique_columns(path, table.column_names)
    table = plain(without_columns(table, context.config.drop))
    positions = row + np.arange(table.num_rows)
    limit = longest_record(context.config)
    if size > limit:
        long = row_sizes(table) > limit
        for position in positions[long].tolist():
            context.counts.unreadable(path, position, f"longer than max_document_bytes ({limit})")
        table, positions = table.filter(pa.array(~long)), positions[~long]
    if table.num_rows:
        context.counts.add_read(table.num_rows)
        yield Chunk(path, with_valid_strings(path, table, context.config.text, context.counts), positions, size)
