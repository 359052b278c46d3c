"""Finds the first record with each id, while the records of a partition arrive block by block in source order. A record
whose id has not occurred before is kept; any later record with the same id is a duplicate and need not be held. Known
ids are stored in sorted lists, each at least twice as long as the next, so the time to add a block is proportional to
the size of the block and to the logarithm of the number of known ids.

Memory: 24 bytes per distinct id, and three times as much while the longest lists are merged.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.engine.exchange.sorted_blocks import stable_order


class Kept(NamedTuple):
    """The ids of N kept records, in ascending order, as two halves, uint64 [N] each; and the position of each record
    among all kept records in source order, int64 [N].
    """

    high: np.ndarray
    low: np.ndarray
    place: np.ndarray

    def contains(self, high: np.ndarray, low: np.ndarray) -> np.ndarray:
        """Return, for each id, whether it is one of these ids: bool."""
        found = np.zeros(len(high), bool)
        at, open_ = np.searchsorted(self.high, high), np.arange(len(high))
        while len(open_):  # one iteration, unless different ids have equal upper halves
            open_ = open_[at[open_] < len(self.high)]
            open_ = open_[self.high[at[open_]] == high[open_]]
            equal = self.low[at[open_]] == low[open_]
            found[open_[equal]] = True
            open_ = open_[~equal]
            at[open_] += 1
        return found

    def merged(self, other: Kept) -> Kept:
        """Return the records of both, in ascending order of id."""
        high, low, place = (np.concatenate(pair) for pair in zip(self, other, strict=True))
        order = stable_order((high, low))
        return Kept(high[order], low[order], place[order])


class FirstCopies:
    """The records that are kept so far. `rows` is their number."""

    def __init__(self) -> None:
        self._lists: list[Kept] = []
        self.rows: int = 0

    def add(self, high: np.ndarray, low: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Add the distinct ids of a block in ascending order, uint64 [N] each, and the block's first row with each id,
        int64 [N]. Return the rows that are kept, in ascending order.
        """
        known = np.zeros(len(high), bool)
        for kept in self._lists:
            known |= kept.contains(high, low)
        high, low, rows = high[~known], low[~known], rows[~known]
        if not len(rows):
            return rows
        place = np.empty(len(rows), np.int64)
        place[np.argsort(rows)] = self.rows + np.arange(len(rows))
        self.rows += len(rows)
        self._lists.append(Kept(high, low, place))
        while len(self._lists) > 1 and len(self._lists[-2].high) < 2 * len(self._lists[-1].high):
            self._lists.append(self._lists.pop().merged(self._lists.pop()))
        return np.sort(rows)

    def all(self) -> Kept:
        """Return all records that are kept."""
        while len(self._lists) > 1:
            self._lists.append(self._lists.pop().merged(self._lists.pop()))
        nothing = np.empty(0, np.uint64)
        return self._lists[0] if self._lists else Kept(nothing, nothing, np.empty(0, np.int64))
