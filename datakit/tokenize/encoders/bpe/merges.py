"""Encodes one word with byte-pair encoding: as long as two neighboring tokens can be merged, merge the pair of the
lowest rank, and of equal pairs the leftmost.

Each merge replaces its pairs and finds the next lowest one in a single pass over all pairs, 16 at a time. (A processor
cannot forward single stores to a later load of 16 pairs; it would wait until they have reached the cache.) So the time
grows with the square of a word's size, but a word of MOST_BYTES still takes less than a millisecond, and nearly all
words have fewer than 30 bytes, for which this is faster than a heap. Addresses and numbers are uint64
(memory_access.py).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numba import njit

from datakit.tokenize.encoders.bpe.memory_access import address_of, byte, put32, replace16, word32
from datakit.tokenize.encoders.bpe.merge_table import NO_RANK, RANK_BITS, MergeAddresses, pair_rank

POSITION_BITS = 32 - RANK_BITS
AHEAD = 64  # words whose places in the cache are looked up at a time
MOST_BYTES = 1 << POSITION_BITS  # in a word; longer ones are left to another encoder
_LANES = np.uint64(16)  # pairs that are compared at a time
_NOTHING = np.uint64(0xFFFFFFFF)
_POSITION, _POSITIONS = np.uint64(POSITION_BITS), np.uint64(MOST_BYTES - 1)
_ZERO, _ONE, _EIGHT = np.uint64(0), np.uint64(1), np.uint64(8)

inner = njit(nogil=True)


@dataclass(frozen=True, eq=False)
class Workspace:
    """Memory for kernels. ahead: uint64 [2 * AHEAD], see `encode_kernel.look_ahead`. The other arrays are for one word:
    uint32 [MOST_BYTES] each. tokens: a token for each byte. pairs: `rank << POSITION_BITS |
    position` of the pair that each token forms with the next one. before, after: the neighbors of each token.
    """

    tokens: np.ndarray
    pairs: np.ndarray
    before: np.ndarray
    after: np.ndarray
    ahead: np.ndarray

    @classmethod
    def new(cls) -> Workspace:
        tokens, pairs, before, after = (np.empty(MOST_BYTES, np.uint32) for _ in range(4))
        return cls(tokens, pairs, before, after, np.empty(2 * AHEAD, np.uint64))

    def addresses(self) -> WorkAddresses:
        return WorkAddresses(*(np.uint64(address_of(getattr(self, entry.name))) for entry in fields(self)))


class WorkAddresses(NamedTuple):
    """The addresses of the arrays of a `Workspace`: uint64 each."""

    tokens: np.uint64
    pairs: np.uint64
    before: np.uint64
    after: np.uint64
    ahead: np.uint64


@inner
def merge_word(
    text: np.uint64, at: np.uint64, size: np.uint64, table: MergeAddresses, space: WorkAddresses
) -> np.uint64:
    """Encode the word of `size` bytes at `at` into `space.tokens`, and return the number of tokens."""
    tokens, pairs, before, after, _ = space
    last = byte(text, at)
    put32(tokens, _ZERO, word32(table.tokens, last))
    put32(before, _ZERO, _NOTHING)
    lowest = _NOTHING
    for i in range(_ONE, size):
        this = byte(text, at + i)
        put32(tokens, i, word32(table.tokens, this))
        put32(before, i, i - _ONE)
        put32(after, i - _ONE, i)
        pair = word32(table.first, last << _EIGHT | this) << _POSITION | (i - _ONE)
        put32(pairs, i - _ONE, pair)
        lowest = min(lowest, pair)
        last = this
    put32(after, size - _ONE, size)
    end = (size + _LANES - _ONE) & ~(_LANES - _ONE)
    for i in range(size - _ONE, end):
        put32(pairs, i, _NOTHING)
    _merge(size, end, lowest, table, space)
    count = position = _ZERO
    while position < size:
        put32(tokens, count, word32(tokens, position))
        count += _ONE
        position = word32(after, position)
    return count


@inner
def _merge(size: np.uint64, end: np.uint64, lowest: np.uint64, table: MergeAddresses, space: WorkAddresses) -> None:
    """Merge the tokens of a workspace. Those that are left are linked by `after`. end: the size, rounded up."""
    tokens, pairs, before, after, _ = space
    while lowest >> _POSITION != NO_RANK:
        at = lowest & _POSITIONS
        merged = word32(table.merged, lowest >> _POSITION)
        gone, left = word32(after, at), word32(before, at)
        right = word32(after, gone)
        put32(tokens, at, merged)
        put32(after, at, right)
        pair = left_pair = _NOTHING
        if right < size:
            put32(before, right, at)
            pair = pair_rank(table, merged, word32(tokens, right)) << _POSITION | at
        if left != _NOTHING:
            left_pair = pair_rank(table, word32(tokens, left), merged) << _POSITION | left
        lowest = _NOTHING
        for start in range(_ZERO, end, _LANES):
            lowest = min(lowest, replace16(pairs, start, at, pair, gone, _NOTHING, left, left_pair))
