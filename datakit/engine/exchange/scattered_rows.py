"""Gathers rows that lie in many tables, in any order, without first copying the tables into one.

Strings and binary values stay where they are, in memory or in a memory-mapped file, until they are gathered. For each
of them, only a view is held: 16 bytes with its length and its place (Arrow's string view). The other columns are
concatenated, because they are usually small.

Cost: one copy of the gathered strings, at the speed of memory. Concatenating the strings first would cost another copy
into memory that the process has not used yet. The kernel has to provide and clear such memory, which takes ten times as
long as the copy (measured: 3 ms per MB on a virtual machine).
Memory: 16 bytes per string, and the columns that do not hold strings. The tables must not be freed, or unmapped, before
the last row has been gathered; the views keep them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import types

from datakit.engine.exchange.run_file import windows
from datakit.storage.row_size import row_sizes

PIECE_BYTES = 1 << 30
LARGEST_BUFFER = (1 << 31) - 1  # a view holds a place in a buffer as a 32-bit number


class ScatteredRows:
    """The rows of several tables with the same schema, numbered consecutively."""

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        """There must be at least one table."""
        self.schema: pa.Schema = tables[0].schema
        self.num_rows: int = sum(table.num_rows for table in tables)
        self._columns = [
            _column(field.type, [chunk for table in tables for chunk in table.column(index).chunks])
            for index, field in enumerate(self.schema)
        ]

    def take(self, rows: np.ndarray) -> pa.Table:
        """Return these rows, in the order given; each column has one chunk."""
        return pa.Table.from_arrays([take(rows) for take in self._columns], schema=self.schema)


def _column(kind: pa.DataType, chunks: list[pa.Array]) -> Callable[[np.ndarray], pa.Array]:
    """Return the function that gathers values of a column."""
    if types.is_string(kind) or types.is_large_string(kind):
        return _Strings.of(kind, pa.string_view(), chunks).take
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _Strings.of(kind, pa.binary_view(), chunks).take
    return _Pieces.of(kind, chunks).take


@dataclass(frozen=True)
class _Strings:
    """Strings or binary values in many buffers. views: int64 [N, 2], as Arrow lays them out. valid: bool [N], or None
    if no value is null.
    """

    kind: pa.DataType
    view_kind: pa.DataType
    views: np.ndarray
    valid: np.ndarray | None
    buffers: list[pa.Buffer]

    @classmethod
    def of(cls, kind: pa.DataType, view_kind: pa.DataType, chunks: Sequence[pa.Array]) -> _Strings:
        parts = [_within_reach(chunk).cast(view_kind) for chunk in chunks if len(chunk)]
        whole = pa.concat_arrays(parts) if parts else pa.array([], view_kind)
        _, views, *buffers = whole.buffers()
        count, first = len(whole), whole.offset
        pairs = np.frombuffer(views, np.int64).reshape(-1, 2)[first : first + count] if count else np.empty((0, 2), int)
        valid = whole.is_valid().to_numpy(zero_copy_only=False) if whole.null_count else None
        return cls(kind, view_kind, pairs, valid, buffers)

    def take(self, rows: np.ndarray) -> pa.Array:
        valid = None if self.valid is None else pa.py_buffer(np.packbits(self.valid[rows], bitorder="little"))
        buffers = [valid, pa.py_buffer(self.views[rows]), *self.buffers]
        return pa.Array.from_buffers(self.view_kind, len(rows), buffers).cast(self.kind)


@dataclass(frozen=True)
class _Pieces:
    """Values of any other type, concatenated. As 32-bit offsets address at most 2 GiB, there may be several pieces.
    starts: the index of the first value of each piece, int64 [pieces].
    """

    pieces: list[pa.Array]
    starts: np.ndarray

    @classmethod
    def of(cls, kind: pa.DataType, chunks: Sequence[pa.Array]) -> _Pieces:
        chunks = [chunk for chunk in chunks if len(chunk)] or [pa.array([], kind)]
        sizes = np.array([int(row_sizes(pa.table({"": chunk})).sum()) for chunk in chunks])
        pieces = [pa.concat_arrays(chunks[first:stop]) for first, stop in windows(sizes, PIECE_BYTES)]
        return cls(pieces, np.cumsum([0, *map(len, pieces[:-1])]))

    def take(self, rows: np.ndarray) -> pa.Array:
        if len(self.pieces) == 1:
            return self.pieces[0].take(pa.array(rows))
        order = np.argsort(rows, kind="stable")
        cuts = np.searchsorted(rows[order], self.starts[1:])
        wanted = zip(self.pieces, self.starts, np.split(rows[order], cuts), strict=True)
        found = pa.concat_arrays([piece.take(pa.array(mine - start)) for piece, start, mine in wanted])
        back = np.empty(len(rows), np.int64)
        back[order] = np.arange(len(rows))
        return found.take(pa.array(back))


def _within_reach(chunk: pa.Array) -> pa.Array:
    """Return the values in a buffer that views can address: a copy if they are a part of a larger one."""
    data = chunk.buffers()[2]
    if data is None or data.size <= LARGEST_BUFFER:
        return chunk
    return chunk.take(pa.array(np.arange(len(chunk))))
