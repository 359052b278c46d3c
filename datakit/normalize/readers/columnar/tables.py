"""Turns tables decoded from Parquet and Arrow files into chunks, and quarantines the rows that are too long.

In a dictionary-encoded column, a few bytes of a file may stand for many GB. The sizes of the rows are therefore
computed before the dictionaries are expanded, and the rows are expanded in pieces of at most 64 MiB. Neither format
guarantees that strings are valid UTF-8, so invalid ones are repaired here, except in the text column, for which the
text rules do this.

Cost: one pass over offsets and dictionary indices.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyarrow import types

from datakit.errors import ColumnError, StorageError
from datakit.normalize.columns.schema_union import plain
from datakit.normalize.readers.base import (
    Chunk,
    Chunks,
    ReadContext,
    longest_record,
    require_unique_columns,
)
from datakit.normalize.readers.valid_strings import with_valid_strings
from datakit.printable import one_line
from datakit.storage.row_size import row_sizes

BATCH_BYTES = 8 << 20  # about the size of a decoded batch; twice the size of a chunk of JSON Lines
PIECE_BYTES = 64 << 20  # maximum size of a piece, measured in the decoded rows, because metadata may understate it
MOST_ROWS = 65_536  # maximum number of rows in a batch; pyarrow's own default for iter_batches
DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)  # the last one is raised for a column name that is not UTF-8
_SHARED = (types.is_dictionary, types.is_run_end_encoded, types.is_string_view, types.is_binary_view)


def rows_per_batch(size: int, rows: int) -> int:
    """Return the number of rows in each batch when `rows` rows of `size` bytes in total are split into batches."""
    return min(MOST_ROWS, max(1, BATCH_BYTES * rows // max(1, size)))


def require_columns(path: str, rows: int, columns: int) -> None:
    """Raise ColumnError if a file has rows but no columns, because pyarrow would read no rows from it."""
    if rows and not columns:
        raise ColumnError(
            f"{one_line(path)} has {rows} rows but no columns; exclude it, or write it again with its columns"
        )


def raise_unless_damage(error: BaseException, path: str) -> None:
    """Raise an error if the machine, rather than the file, is at fault.

    pyarrow's error for a failed allocation is both an ArrowException and a MemoryError; it does not indicate damage.
    """
    if isinstance(error, MemoryError):
        raise error
    if isinstance(error, OSError) and error.errno is not None:
        raise StorageError(f"{one_line(path)} cannot be read: {error.strerror}") from error


def chunks_of(context: ReadContext, path: str, table: pa.Table, row: int) -> Chunks:
    """Yield the rows as chunks; the first row has index `row` in the file. Quarantine rows that are too long.

    table: a table that `check_arrays` has accepted.
    """
    require_unique_columns(path, table.column_names)
    table = context.choice.read_columns(table)
    for start, stop in _pieces(context, path, table, row):
        piece = plain(table.slice(start, stop - start))
        context.counts.add_read(piece.num_rows)
        valid = with_valid_strings(path, piece, context.config.text_column, context.counts)
        yield Chunk(path, valid, row + np.arange(start, stop), piece.nbytes)


def _pieces(context: ReadContext, path: str, table: pa.Table, row: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows as (start, stop), leaving out rows that are too long; such rows are quarantined."""
    limit = longest_record(context.config)
    if table.nbytes <= limit and not any(_may_share_values(field.type) for field in table.schema):
        if table.num_rows:
            yield 0, table.num_rows
        return
    sizes = row_sizes(table)
    ends, long = np.cumsum(sizes), np.flatnonzero(sizes > limit)
    start = 0
    for stop in [*long.tolist(), table.num_rows]:
        while start < stop:
            most = int(ends[start] - sizes[start]) + PIECE_BYTES
            cut = min(stop, max(start + 1, int(np.searchsorted(ends, most, side="right"))))
            yield start, cut
            start = cut
        if stop < table.num_rows:
            context.counts.unreadable(path, row + stop, f"longer than max_document_bytes ({limit})")
            start = stop + 1


def _may_share_values(kind: pa.DataType) -> bool:
    """Return True if several elements of an array of this type may share one stored value, so that expanding the array
    makes it larger.
    """
    if any(is_shared(kind) for is_shared in _SHARED):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _may_share_values(kind.storage_type)
    return any(_may_share_values(kind.field(number).type) for number in range(kind.num_fields))
