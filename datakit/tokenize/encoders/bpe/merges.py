"""Encodes one word with byte-pair encoding: as long as two neighboring tokens can be merged, merge the pair of the
lowest rank, and of equal pairs the leftmost.

After each merge, a word of up to SHORT bytes is searched for its lowest pair, which compares 16 pairs at a time. A
longer word uses a heap of its pairs, so n bytes take time in proportion to n log n. Addresses and numbers are uint64
(memory_access.py).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numba import njit

from datakit.tokenize.encoders.bpe.memory_access import address_of, byte, lowest16, put32, put64, word32, word64
from datakit.tokenize.encoders.bpe.merge_table import NO_RANK, MergeAddresses, pair_rank

MOST_BYTES = 1 << 16  # longer words are left to `long_words.py`, whose memory does not grow with the word
SHORT = np.uint64(192)  # bytes in a word that is searched after each merge; at most 256, because of _POSITION
_LANES = np.uint64(16)  # pairs that are compared at a time
_NOTHING = np.uint64(0xFFFFFFFF)
_POSITION, _POSITIONS = np.uint64(8), np.uint64(0xFF)
_HALF = np.uint64(32)
_ZERO, _ONE, _EIGHT = np.uint64(0), np.uint64(1), np.uint64(8)

inner = njit(nogil=True)


@dataclass(frozen=True, eq=False)
class Workspace:
    """Memory for one word of MOST_BYTES bytes. tokens: uint32, a token for each byte. pairs: uint32, for the pair that
    each token forms with the next one, `rank << 8 | position` in a short word, and the rank in a long one. before,
    after: uint32, the neighbors of each token. heap: uint64, `rank << 32 | position`. The system provides the memory
    for long words when it is first used.
    """

    tokens: np.ndarray
    pairs: np.ndarray
    before: np.ndarray
    after: np.ndarray
    heap: np.ndarray

    @classmethod
    def new(cls) -> Workspace:
        tokens, pairs, before, after = (np.empty(MOST_BYTES, np.uint32) for _ in range(4))
        return cls(tokens, pairs, before, after, np.empty(2 * MOST_BYTES, np.uint64))

    def addresses(self) -> WorkAddresses:
        return WorkAddresses(*(np.uint64(address_of(getattr(self, entry.name))) for entry in fields(self)))


class WorkAddresses(NamedTuple):
    """The addresses of the arrays of a `Workspace`: uint64 each."""

    tokens: np.uint64
    pairs: np.uint64
    before: np.uint64
    after: np.uint64
    heap: np.uint64


@inner
def merge_word(
    text: np.uint64, at: np.uint64, size: np.uint64, table: MergeAddresses, space: WorkAddresses
) -> np.uint64:
    """Encode the word of `size` bytes at `at` into `space.tokens`, and return the number of tokens."""
    last = byte(text, at)
    put32(space.tokens, _ZERO, word32(table.tokens, last))
    put32(space.before, _ZERO, _NOTHING)
    for i in range(_ONE, size):
        this = byte(text, at + i)
        put32(space.tokens, i, word32(table.tokens, this))
        put32(space.before, i, i - _ONE)
        put32(space.after, i - _ONE, i)
        put32(space.pairs, i - _ONE, word32(table.first, last << _EIGHT | this))
        last = this
    put32(space.after, size - _ONE, size)
    put32(space.pairs, size - _ONE, NO_RANK)
    return _merge_short(size, table, space) if size <= SHORT else _merge_long(size, table, space)


@inner
def _merge_short(size: np.uint64, table: MergeAddresses, space: WorkAddresses) -> np.uint64:
    tokens, pairs, before, after = space.tokens, space.pairs, space.before, space.after
    for i in range(size):
        put32(pairs, i, word32(pairs, i) << _POSITION | i)
    end = (size + _LANES - _ONE) & ~(_LANES - _ONE)
    for i in range(size, end):
        put32(pairs, i, _NOTHING)
    while True:
        lowest = lowest16(pairs, _ZERO)
        for start in range(_LANES, end, _LANES):
            lowest = min(lowest, lowest16(pairs, start))
        rank, at = lowest >> _POSITION, lowest & _POSITIONS
        if rank == NO_RANK:
            break
        merged = word32(table.merged, rank)
        gone, left = word32(after, at), word32(before, at)
        right = word32(after, gone)
        put32(tokens, at, merged)
        put32(after, at, right)
        put32(pairs, gone, _NOTHING)
        put32(pairs, at, _NOTHING)
        if right < size:
            put32(before, right, at)
            put32(pairs, at, pair_rank(table, merged, word32(tokens, right)) << _POSITION | at)
        if left != _NOTHING:
            put32(pairs, left, pair_rank(table, word32(tokens, left), merged) << _POSITION | left)
    return _gathered(size, tokens, after)


@inner
def _gathered(size: np.uint64, tokens: np.uint64, after: np.uint64) -> np.uint64:
    """Move the tokens that are left to the front, and return their number."""
    count = at = _ZERO
    while at < size:
        put32(tokens, count, word32(tokens, at))
        count += _ONE
        at = word32(after, at)
    return count


@inner
def _merge_long(size: np.uint64, table: MergeAddresses, space: WorkAddresses) -> np.uint64:
    tokens, pairs, before, after = space.tokens, space.pairs, space.before, space.after
    held = _ZERO
    for i in range(size):
        held = _offer(space.heap, held, word32(pairs, i), np.uint64(i))
    while held > _ZERO:
        lowest = word64(space.heap, _ZERO)
        held = _drop_lowest(space.heap, held)
        at = lowest & _NOTHING
        if word32(pairs, at) != lowest >> _HALF:
            continue  # the pair has changed since it was put on the heap
        merged = word32(table.merged, lowest >> _HALF)
        gone, left = word32(after, at), word32(before, at)
        right = word32(after, gone)
        put32(tokens, at, merged)
        put32(after, at, right)
        put32(pairs, gone, NO_RANK)
        put32(pairs, at, NO_RANK)
        if right < size:
            put32(before, right, at)
            rank = pair_rank(table, merged, word32(tokens, right))
            put32(pairs, at, rank)
            held = _offer(space.heap, held, rank, at)
        if left != _NOTHING:
            rank = pair_rank(table, word32(tokens, left), merged)
            put32(pairs, left, rank)
            held = _offer(space.heap, held, rank, left)
    return _gathered(size, tokens, after)


@inner
def _offer(heap: np.uint64, held: np.uint64, rank: np.uint64, position: np.uint64) -> np.uint64:
    """Put the pair at `position` on the heap of `held` numbers if it can be merged, and return their new number."""
    if rank == NO_RANK:
        return held
    value, at = rank << _HALF | position, held
    while at > _ZERO:
        parent = word64(heap, (at - _ONE) >> _ONE)
        if parent <= value:
            break
        put64(heap, at, parent)
        at = (at - _ONE) >> _ONE
    put64(heap, at, value)
    return held + _ONE


@inner
def _drop_lowest(heap: np.uint64, held: np.uint64) -> np.uint64:
    held -= _ONE
    value, at = word64(heap, held), _ZERO
    while True:
        child = at + at + _ONE
        if child >= held:
            break
        if child + _ONE < held and word64(heap, child + _ONE) < word64(heap, child):
            child += _ONE
        if word64(heap, child) >= value:
            break
        put64(heap, at, word64(heap, child))
        at = child
    put64(heap, at, value)
    return held
