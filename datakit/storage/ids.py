"""Converts document ids between hex digits (in files) and pairs of uint64 (in memory), and assigns ids to partitions.

An id is the xxh3-128 of a document's text, written as 32 hex digits. Partition `i` of `2**bits` holds the ids whose top
`bits` bits are `i`. Therefore, if source A has more partitions than source B, each partition of A lies within one
partition of B, and every join is a merge of sorted ids. Sorting and comparing pairs of uint64 is several times faster
than comparing hex strings. Both forms sort in the same order, since the digits are lowercase and zero-padded.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datakit.errors import CorruptError

HEX_DIGITS = 32
ADVICE = "the file is damaged or was not written by datakit; remove its step's directory and run again"
_TO_HEX = np.frombuffer("".join(f"{value:02x}" for value in range(256)).encode(), np.uint16)
_FROM_HEX = np.full(256, 255, np.uint8)
_FROM_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16, dtype=np.uint8)


def ids_from_digests(digests: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Convert concatenated 16-byte big-endian digests to (high, low), each uint64 [N]."""
    pairs = np.frombuffer(digests, ">u8").reshape(-1, 2)
    return pairs[:, 0].astype(np.uint64), pairs[:, 1].astype(np.uint64)


def ids_to_arrow(high: np.ndarray, low: np.ndarray) -> pa.StringArray:
    """Convert (high, low), uint64 [N] each, to a column of strings [N], each with 32 lowercase hex digits."""
    count = len(high)
    pairs = np.empty((count, 2), ">u8")
    pairs[:, 0], pairs[:, 1] = high, low
    digits = _TO_HEX[pairs.view(np.uint8).reshape(-1)]
    offsets = np.arange(count + 1, dtype=np.int64) * HEX_DIGITS
    large = pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(digits))
    return large.cast(pa.string())


def ids_from_arrow(column: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Convert a column of strings [N], each with 32 lowercase hex digits, to (high, low), uint64 [N] each. Raises
    ValueError for any other content.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if len(column) == 0:
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    width = np.int64 if pa.types.is_large_string(column.type) else np.int32
    buffers = column.buffers()
    offsets = np.frombuffer(buffers[1], width)[column.offset : column.offset + len(column) + 1]
    digits = np.frombuffer(buffers[2], np.uint8)[offsets[0] : offsets[-1]]
    if column.null_count or len(digits) != len(column) * HEX_DIGITS or (np.diff(offsets) != HEX_DIGITS).any():
        raise ValueError("an id column must hold 32 hex digits in every row")
    nibbles = _FROM_HEX[digits]
    if (nibbles > 15).any():
        raise ValueError("an id column must hold only lowercase hex digits")
    return ids_from_digests(((nibbles[0::2] << 4) | nibbles[1::2]).tobytes())


def strictly_ascending(high: np.ndarray, low: np.ndarray) -> bool:
    """Return True if the ids, given as (high, low), uint64 [N] each, are sorted and unique."""
    larger = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
    return bool(larger.all())


def top_bits(values: np.ndarray, count: int) -> np.ndarray:
    """Return the index of each value's bucket, int64 [N]: the value's top log2(`count`) bits. `count`, the number of
    buckets, is a power of two.
    """
    bits = count.bit_length() - 1
    return (values >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(values), np.int64)


def partition_range(index: int, bits: int) -> tuple[str, str]:
    """Return the smallest and the largest possible id (32 hex digits each) of partition `index` out of `2**bits`."""
    width = 128 - bits
    return f"{index << width:032x}", f"{((index + 1) << width) - 1:032x}"


def partition_name(index: int, count: int, suffix: str = ".parquet") -> str:
    """Return a file name such as `part-00017-of-00106.parquet`. All partitioned outputs have names of this form."""
    return f"part-{index:05d}-of-{count:05d}{suffix}"


class OrderedIds:
    """Parses the ids of a stream and checks that they are strictly ascending, within and across row groups."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._last: tuple[int, int] | None = None

    def parse(self, column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
        """Return the upper and lower halves of the ids, uint64 [N] each; N must be at least 1. Raises CorruptError."""
        try:
            high, low = ids_from_arrow(column)
        except ValueError as error:
            raise CorruptError(f"{self._url}: {error}; {ADVICE}") from error
        first = (int(high[0]), int(low[0]))
        if (self._last is not None and first <= self._last) or not strictly_ascending(high, low):
            raise CorruptError(f"{self._url}: its ids are not strictly ascending; {ADVICE}")
        self._last = (int(high[-1]), int(low[-1]))
        return high, low
