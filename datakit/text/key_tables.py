"""Looks up keys in a sorted table that can lie in a memory-mapped file. A bitmap of the leading bits of all keys, with
16 to 32 bits per key, shows for at least 15 of 16 absent keys that they are absent. For the others, a directory gives
the range of rows with the same leading bits, on average 2 to 4 rows, which are compared.

The bitmap of 4 million keys (100,000 items of 50 words) takes 8 to 16 MB. It does not fit in a core's own cache, but a
block of keys is tested in one loop without branches, so that the processor loads many entries at the same time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.text.numba_cache import Decorator, cached_njit

BITMAP_BITS_PER_KEY = 16
KEYS_PER_BUCKET = 4
_ONE, _SIX, _IN_WORD = np.uint64(1), np.uint64(6), np.uint64(63)

kernel: Decorator = cached_njit()


class Table(NamedTuple):
    """Sorted keys with the structures that find them.

    keys: uint64 [K]. directory: uint32 [2**p + 1], the first row whose key has at least the given p leading bits.
    bitmap: uint64 [2**(b - 6)], one bit for each value of the b leading bits of a key.
    """

    keys: np.ndarray
    directory: np.ndarray
    bitmap: np.ndarray


def new_table(keys: np.ndarray) -> Table:
    """Return the table of sorted keys. Memory beyond the keys: 3 to 6 bytes per key."""
    directory_bits = max(1, (len(keys) // KEYS_PER_BUCKET).bit_length())
    bitmap_bits = max(6, (len(keys) * BITMAP_BITS_PER_KEY).bit_length())
    bitmap = np.zeros(1 << (bitmap_bits - 6), np.uint64)
    set_bits(keys, np.uint64(64 - bitmap_bits), bitmap)
    limits = np.arange(1 << directory_bits, dtype=np.uint64) << np.uint64(64 - directory_bits)
    directory = np.append(np.searchsorted(keys, limits), len(keys)).astype(np.uint32)
    return Table(keys, directory, bitmap)


@kernel
def leading_bits(entries: int) -> np.uint64:
    """Return the shift that leaves of a key as many leading bits as number `entries`, a power of two above 1."""
    shift = np.uint64(64)
    while entries > 1:
        entries >>= 1
        shift -= _ONE
    return shift


@kernel
def set_bits(keys: np.ndarray, shift: np.uint64, bitmap: np.ndarray) -> None:
    """Set the bits of all keys in a bitmap."""
    for key in keys:
        bit = key >> shift
        bitmap[bit >> _SIX] |= _ONE << (bit & _IN_WORD)


@kernel
def possible(keys: np.ndarray, count: int, bitmap: np.ndarray, shift: np.uint64, chosen: np.ndarray) -> int:
    """Write to `chosen` the positions of those of `keys[:count]` whose bits are set; return how many there are."""
    found = 0
    for i in range(count):
        bit = keys[i] >> shift
        chosen[found] = i
        found += int((bitmap[bit >> _SIX] >> (bit & _IN_WORD)) & _ONE)
    return found


@kernel
def first_row(table: Table, shift: np.uint64, key: np.uint64) -> int:
    """Return the first row with this key, or -1. shift: `leading_bits` of the directory."""
    bucket = key >> shift
    for row in range(np.int64(table.directory[bucket]), np.int64(table.directory[bucket + _ONE])):
        if table.keys[row] == key:
            return row
    return -1
