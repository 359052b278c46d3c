"""Implements the compiled loop that compares stretches, which must be in the order of anchor, hash, and place.

Copies are found without looking into the stretches where possible. A stretch is a copy as a whole if an equal one came
before it, in another document or at least `size` bytes earlier. Of all others, only the first stretch of each hash (and
those that overlap it) can hold substrings that no earlier one decides. These are *undecided* if the anchor also has
stretches with another hash; otherwise none of their substrings is a copy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.text.numba_cache import Decorator, cached_njit

SETTLED, OPEN, WAITING = 0, 1, 2  # waiting: it is unknown yet whether the anchor has stretches with another hash

kernel: Decorator = cached_njit()


class Sorted(NamedTuple):
    """The columns of stretches, in the order of anchor, high, low and place."""

    anchor: np.ndarray
    high: np.ndarray
    low: np.ndarray
    row: np.ndarray
    start: np.ndarray
    substrings: np.ndarray
    repeats: np.ndarray
    search: np.ndarray


class State(NamedTuple):
    """The state after the last stretch that was read. first: its anchor and its hash, and the row and the start of the
    first stretch with this hash, uint64 [5]. flags: whether any stretch was read, and whether its anchor has stretches
    with different hashes, bool [2].
    """

    first: np.ndarray
    flags: np.ndarray

    @classmethod
    def empty(cls) -> State:
        """Return the state before the first stretch."""
        return cls(np.zeros(5, np.uint64), np.zeros(2, np.bool_))


@kernel
def compare(rows: Sorted, sizes: np.ndarray, state: State, decided: np.ndarray, fates: np.ndarray) -> int:
    """Write to `decided` the index of the substring of each stretch from which on all are copies, and to `fates` what
    becomes of the substrings before it. sizes: the bytes of a substring of each search. Update the state, and return
    the fate of the stretches that were WAITING at the end of the previous call.
    """
    anchor, high, low, row = state.first[0], state.first[1], state.first[2], state.first[3]
    start, begun, several = np.int64(state.first[4]), state.flags[0], state.flags[1]
    before, waiting = WAITING, 0  # of this call, stretches from this one on may be waiting
    for i in range(len(rows.row)):
        same_anchor = begun and rows.anchor[i] == anchor
        if not (same_anchor and rows.high[i] == high and rows.low[i] == low):
            fate = OPEN if same_anchor else SETTLED
            before = fate if before == WAITING else before
            for k in range(waiting, i):
                fates[k] = fate if fates[k] == WAITING else fates[k]
            several, begun, waiting = same_anchor, True, i
            anchor, high, low = rows.anchor[i], rows.high[i], rows.low[i]
            row, start = rows.row[i], np.int64(rows.start[i])
        size, substrings = sizes[rows.search[i]], np.int64(rows.substrings[i])
        missing = start + size - np.int64(rows.start[i]) if rows.row[i] == row else 0
        overlapping = (missing + substrings - 1) // substrings if missing > 0 else 0
        decided[i] = min(overlapping, np.int64(rows.repeats[i])) * substrings
        fates[i] = SETTLED if decided[i] == 0 else OPEN if several else WAITING
    state.first[:] = anchor, high, low, row, np.uint64(start)
    state.flags[:] = begun, several
    return before
