"""Holds the merges of a byte-pair encoding: which pairs of tokens can be merged, in which order, and into which token.

The table is a hash table with open addressing. Most pairs of neighboring tokens cannot be merged. A filter of one bit
per hash, in an eighth of the table's memory, recognizes most of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numba import njit

from datakit.text.hash_mixing import GOLDEN
from datakit.tokenize.encoders.bpe.memory_access import address_of, byte, word64

TOKEN_BITS, RANK_BITS = 20, 20
NO_RANK = np.uint64((1 << RANK_BITS) - 1)  # of a pair that cannot be merged
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_TOKEN, _RANK = np.uint64(TOKEN_BITS), np.uint64(RANK_BITS)
_ZERO, _ONE, _THREE, _SEVEN = (np.uint64(number) for number in (0, 1, 3, 7))

hot = njit(nogil=True, forceinline=True)


@dataclass(frozen=True, eq=False)
class Merges:
    """A table of merges with open addressing. slots: uint64 [S], `left token << 40 | right token << 20 | rank`; S is a
    power of two. shift: 64 - log2(S). filter: uint8 [S], of whose bits those are set that belong to the hash of a pair
    in the table; most other pairs are recognized by it, in an eighth of the memory. merged: uint32 [M], the token that
    the merge of each rank makes. tokens: uint32 [256], the token of each byte. first: uint32 [256 * 256], the rank of
    each pair of bytes.
    """

    slots: np.ndarray
    shift: int
    filter: np.ndarray
    merged: np.ndarray
    tokens: np.ndarray
    first: np.ndarray

    def addresses(self) -> MergeAddresses:
        values = (getattr(self, entry.name) for entry in fields(self))
        numbers = (value if isinstance(value, int) else address_of(value) for value in values)
        return MergeAddresses(*map(np.uint64, numbers))


class MergeAddresses(NamedTuple):
    """The addresses of the arrays of `Merges`, and its shift: uint64 each."""

    slots: np.uint64
    shift: np.uint64
    filter: np.uint64
    merged: np.uint64
    tokens: np.uint64
    first: np.uint64


def merges_table(pairs: np.ndarray, merged: np.ndarray, tokens: np.ndarray) -> Merges:
    """Return the table of M merges. pairs: uint64 [M, 2], by rank, of tokens below 2**TOKEN_BITS; M is below NO_RANK.
    Of a pair that is listed twice, the last rank counts. merged: uint32 [M]. tokens: uint32 [256].
    """
    shift = 64 - max(4, int(2 * len(pairs)).bit_length())
    keys = pairs[:, 0] << _TOKEN | pairs[:, 1]
    found, last = np.unique(keys[::-1], return_index=True)
    ranks = (len(keys) - 1 - last).astype(np.uint64)
    mixed = found * GOLDEN
    homes, flags = (mixed >> np.uint64(shift)).astype(np.int64), np.zeros(1 << (64 - shift), np.uint8)
    np.bitwise_or.at(flags, homes, (_ONE << (mixed >> np.uint64(shift - 3) & _SEVEN)).astype(np.uint8))
    slots = _filled(homes, found << _RANK | ranks, len(flags))
    return Merges(slots, shift, flags, merged, tokens, _ranks_of_bytes(keys, tokens))


def _filled(homes: np.ndarray, entries: np.ndarray, size: int) -> np.ndarray:
    """Return a table of `size` slots in which each entry is in the first slot that was free, from its home on."""
    slots = np.full(size, _EMPTY)
    while len(homes):
        free = slots[homes] == _EMPTY
        places, chosen = np.unique(np.where(free, homes, -1), return_index=True)
        chosen = chosen[places >= 0]  # one entry for each free slot
        slots[homes[chosen]] = entries[chosen]
        left = np.ones(len(homes), bool)
        left[chosen] = False
        homes, entries = (homes[left] + 1) % size, entries[left]
    return slots


def _ranks_of_bytes(keys: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Return uint32 [256 * 256], the rank of each pair of bytes, or NO_RANK. keys: uint64 [M], the pairs by rank."""
    wide = tokens.astype(np.uint64)
    wanted = (wide[:, None] << _TOKEN | wide).ravel()
    if not len(keys):
        return np.full(len(wanted), NO_RANK, np.uint32)
    order = np.argsort(keys, kind="stable")  # so that the last of equal pairs is found
    ranks = order[np.searchsorted(keys, wanted, side="right", sorter=order) - 1]
    return np.where(keys[ranks] == wanted, ranks, int(NO_RANK)).astype(np.uint32)


@hot
def pair_rank(table: MergeAddresses, left: np.uint64, right: np.uint64) -> np.uint64:
    """Return the rank of a pair of tokens, or NO_RANK if they cannot be merged."""
    key = left << _TOKEN | right
    last = (_ONE << (np.uint64(64) - table.shift)) - _ONE
    mixed = key * GOLDEN
    slot = mixed >> table.shift
    listed = byte(table.filter, slot) >> (mixed >> (table.shift - _THREE) & _SEVEN) & _ONE
    found = word64(table.slots, slot)
    # Whether a pair can be merged is unpredictable, so the usual cases are decided without a branch.
    rank = found & NO_RANK if found >> _RANK == key else NO_RANK
    while listed != _ZERO and found >> _RANK != key and found != _EMPTY:
        slot = (slot + _ONE) & last
        found = word64(table.slots, slot)
        rank = found & NO_RANK if found >> _RANK == key else NO_RANK
    return rank
