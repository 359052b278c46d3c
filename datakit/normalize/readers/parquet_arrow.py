"""Reads Parquet and Arrow files, a few MiB at a time.

How many rows are decoded at once follows from the file's own metadata. A row group that cannot be decoded costs its own
rows, a footer that cannot be read costs the file; both are quarantined with their row number. Strings that are not
UTF-8, which neither format checks, are mended here, but for the text column, which has rules of its own.

Cost: Parquet decodes at 500 to 900 MB/s of text a core; Arrow files are mapped.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datakit.errors import ColumnError, StorageError
from datakit.normalize.formats import ARROW, PARQUET, check_head
from datakit.normalize.readers.base import Block, Blocks, Reading
from datakit.normalize.readers.streams import HEAD_BYTES
from datakit.normalize.readers.valid_strings import with_valid_strings
from datakit.normalize.schema_union import plain, shown
from datakit.storage import urls

BATCH_BYTES = 8 << 20
MOST_ROWS = 65_536
STREAM_HEAD = b"\xff\xff\xff\xff"
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)  # the last: a name of a column


def read_parquet(reading: Reading, path: str, start: int = 0, stop: int | None = None) -> Blocks:
    """The rows of row groups [start, stop) of a file; `stop` None is its end."""
    with reading.inputs.open(path) as source:
        file = open_parquet(source, path)
        if file is None:
            reading.findings.unreadable(path, 0, "its footer cannot be read, so none of its rows can")
        else:
            yield from _row_groups(reading, path, file, start, stop)


def _row_groups(reading: Reading, path: str, file: pq.ParquetFile, start: int, stop: int | None) -> Blocks:
    with file:
        metadata = file.metadata
        row = sum(metadata.row_group(group).num_rows for group in range(start))
        for group in range(start, metadata.num_row_groups if stop is None else stop):
            info = metadata.row_group(group)
            end = row + info.num_rows
            if info.num_rows == 1 and (path, row) in reading.context.skip:  # it may be the decoder that it kills
                reading.findings.unreadable(path, row, reading.context.skip[path, row])
                row = end
                continue
            batches = file.iter_batches(
                _rows(info.total_byte_size, info.num_rows), row_groups=[group], use_threads=False
            )
            reading.context.hold(path, row, info.num_rows)
            try:
                for batch in batches:
                    yield _block(reading, path, batch, row)
                    row += batch.num_rows
                    reading.context.hold(path, row, end - row)
            except _DAMAGE as error:
                _raise_if_device(error, path)
                reading.findings.unreadable(
                    path, row, f"row group {group} cannot be decoded to its end", max(1, end - row)
                )
            row = end


def open_parquet(source: BinaryIO, path: str) -> pq.ParquetFile | None:
    """A Parquet file, or None where its footer is damaged. Raises UnreadableError for another kind of file."""
    check_head(path, source.read(HEAD_BYTES), PARQUET)
    try:
        return pq.ParquetFile(source, page_checksum_verification=True)
    except _DAMAGE as error:
        _raise_if_device(error, path)
        return None


def _rows(size: int, rows: int) -> int:
    return min(MOST_ROWS, max(1, BATCH_BYTES * rows // max(1, size)))


def read_arrow(reading: Reading, path: str) -> Blocks:
    """The rows of an Arrow IPC file or stream."""
    with reading.inputs.open(path) as source:
        head = source.read(HEAD_BYTES)
        if not head.startswith(STREAM_HEAD):
            check_head(path, head, ARROW)
        row = 0
        try:
            for batch in _arrow_batches(_mapped(reading, path, source), head):
                for start in range(0, batch.num_rows, step := _rows(batch.nbytes, batch.num_rows)):
                    part = batch.slice(start, step)
                    yield _block(reading, path, part, row)
                    row += part.num_rows
        except _DAMAGE as error:
            _raise_if_device(error, path)
            reading.findings.unreadable(path, row, "what follows cannot be decoded")


def _mapped(reading: Reading, path: str, source: BinaryIO) -> Any:
    """A local file's bytes without a copy; of a remote file the reader itself."""
    if not urls.is_local(reading.inputs.base):
        source.seek(0)
        return source
    reading.inputs.keep_watching(path)
    return pa.BufferReader(pa.py_buffer(mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)))


def _arrow_batches(source: Any, head: bytes) -> Iterator[pa.RecordBatch]:
    if head.startswith(STREAM_HEAD):
        yield from pa.ipc.open_stream(source)
    else:
        with pa.ipc.open_file(source) as reader:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)


def _raise_if_device(error: BaseException, path: str) -> None:
    """Arrow reports damage as OSError too; one with a number comes from the operating system.

    A failed allocation is an ArrowException, and no damage either.
    """
    if isinstance(error, MemoryError):
        raise error
    if isinstance(error, OSError) and error.errno is not None:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error


def _block(reading: Reading, path: str, batch: pa.RecordBatch, row: int) -> Block:
    table = pa.Table.from_batches([batch])
    names = table.column_names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ColumnError(f"{path} has two columns named {shown(twice)}; rename one")
    present = [name for name in reading.config.drop if name in names]
    if present:
        table = table.drop_columns(present)
    reading.findings.met(table.num_rows)
    table = with_valid_strings(plain(table), reading.config.text, reading.findings)
    return Block(path, table, row + np.arange(table.num_rows), batch.nbytes)
