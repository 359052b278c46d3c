"""Reads Arrow IPC files and streams, and quarantines the first damaged batch and what follows it.

Cost: local files are memory-mapped, so only the columns that are used are read.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from datakit.normalize.formats import ARROW, check_head
from datakit.normalize.readers.base import Chunks, ReadContext
from datakit.normalize.readers.columnar.tables import (
    DAMAGE,
    chunks_of,
    raise_unless_damage,
    require_columns,
    rows_per_batch,
)
from datakit.normalize.readers.sound_arrays import check_arrays
from datakit.normalize.readers.streams import HEAD_BYTES
from datakit.storage import urls

STREAM_HEAD = b"\xff\xff\xff\xff"
STREAM_END = STREAM_HEAD + bytes(4)


def read_arrow(context: ReadContext, path: str) -> Chunks:
    """Yield the rows of an Arrow IPC file or stream. Raises UnreadableError, ColumnError or StorageError."""
    with context.inputs.open(path) as source:
        head = source.read(HEAD_BYTES)
        if not head.startswith(STREAM_HEAD):
            check_head(path, head, ARROW)
        row = 0
        try:
            for batch in _batches(_mapped(context, path, source), head):
                require_columns(path, batch.num_rows, batch.num_columns)
                for start in range(0, batch.num_rows, step := rows_per_batch(batch.nbytes, batch.num_rows)):
                    table = pa.Table.from_batches([batch.slice(start, step)])
                    check_arrays(table)
                    yield from chunks_of(context, path, table, row)
                    row += table.num_rows
        except DAMAGE as error:
            raise_unless_damage(error, path)
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


def _batches(source: Any, head: bytes) -> Iterator[pa.RecordBatch]:
    if head.startswith(STREAM_HEAD):
        yield from pa.ipc.open_stream(source)
    else:
        with pa.ipc.open_file(source) as reader:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
