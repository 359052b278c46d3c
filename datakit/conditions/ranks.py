"""Finds, among all documents of a rule's population, the one at which a share of them ends, in the order of value and
id. Pure arithmetic on sort keys; the tasks that count keys are in `count_ranks.py`.

A sort key has 192 bits: the value as a float64 in an order-preserving form, then the id. The search fixes DIGIT bits
of the key in each round: tasks count the keys that begin with the bits found so far by their next digit. Once at most
FEW keys remain, a round lists them, and the search ends. No round holds more than 2**DIGIT counts or FEW keys per rule,
whatever the number of documents; four rounds are enough for 10**10 documents with different values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

DIGIT = 12
FEW = 4096
BITS = 192


@dataclass(frozen=True)
class Search:
    """The state of a search. prefix: the first `bits` bits of the key that is searched for. rank: its rank, from 0,
    among the keys with this prefix. remaining: the number of these keys; None before the first round.
    """

    prefix: int = 0
    bits: int = 0
    rank: int = 0
    remaining: int | None = None

    @property
    def lists(self) -> bool:
        """True if the next round lists the remaining keys instead of counting them."""
        return self.remaining is not None and (self.remaining <= FEW or self.bits == BITS)

    def narrowed(self, counts: Mapping[int, int]) -> Search:
        """Return the search after a round in which the keys were counted by their next digit."""
        before = 0
        for digit in sorted(counts):
            if before + counts[digit] > self.rank:
                prefix = self.prefix << DIGIT | digit
                return Search(prefix, self.bits + DIGIT, self.rank - before, counts[digit])
            before += counts[digit]
        raise ValueError(f"rank {self.rank} is not below the number of keys, {before}")


def sortable(values: np.ndarray) -> np.ndarray:
    """Return float64 values [N], none of them NaN, as uint64 [N] in the same order.

    >>> order = sortable(np.array([-np.inf, -1.5, 0.0, 1e-300, 2.0, np.inf]))
    >>> bool((order[1:] > order[:-1]).all())
    True
    """
    bits = (values + 0.0).view(np.uint64)  # + 0.0: -0.0 and 0.0 are equal
    negative = bits >> np.uint64(63) == 1
    return np.where(negative, ~bits, bits | np.uint64(1 << 63))


def digits(words: tuple[np.ndarray, np.ndarray, np.ndarray], search: Search) -> np.ndarray:
    """Return the next digit of each key that begins with the search's prefix: int64 [M]. words: the three words of the
    keys, uint64 [N] each.
    """
    inside = beginning(words, search)
    return _field(words, search.bits, DIGIT, inside)


def beginning(words: tuple[np.ndarray, np.ndarray, np.ndarray], search: Search) -> np.ndarray:
    """Return the indices of the keys that begin with the search's prefix: int64 [M]."""
    inside = np.ones(len(words[0]), bool)
    for number, word in enumerate(words):
        known = min(max(search.bits - 64 * number, 0), 64)
        if known:
            prefix = (search.prefix >> max(search.bits - 64 * (number + 1), 0)) & ((1 << known) - 1)
            inside &= word >> np.uint64(64 - known) == np.uint64(prefix)
    return np.flatnonzero(inside)


def _field(words: tuple[np.ndarray, ...], start: int, width: int, rows: np.ndarray) -> np.ndarray:
    """Return bits [start, start + width) of some keys."""
    number, offset = divmod(start, 64)
    here = min(width, 64 - offset)
    mask = np.uint64((1 << here) - 1)
    value = ((words[number][rows] >> np.uint64(64 - offset - here)) & mask).astype(np.int64)
    if here == width:
        return value
    rest = _field(words, start + here, width - here, rows)
    return value << (width - here) | rest


def counted(results: Iterable[Iterable[tuple[int, int]]]) -> dict[int, int]:
    """Add up the counts of tasks, each a list of (digit, count)."""
    total: dict[int, int] = {}
    for result in results:
        for digit, count in result:
            total[digit] = total.get(digit, 0) + count
    return total
