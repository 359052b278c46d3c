"""Decides how many sequences each component gets in a mixture block, so that totals stay within 1 of the exact shares.

In a mixture block of B sequences, a component with weight w is owed exactly w * B sequences, which is rarely a whole
number. Two simple rules fail. If shares are rounded block by block, a component with a tiny weight is never served. If
the running totals w * B * b after b blocks are rounded by largest remainders, they are not monotone: with many
components, one of them may be allotted fewer sequences in total after more blocks, so that some block would need a
negative count.

Therefore, what a component is still owed (its debt) is carried from block to block in fixed point (int64, in units of
2^-40 of a sequence), with weights that sum to exactly 2^40. The debts are paid as in fair scheduling: sequence j of a
component (counted from 1) may be served once the component's accumulated share exceeds j - 1, and must be served no
later than in the block in which that share reaches j. A block first serves the sequences that are due. The rest of the
block is filled with sequences that may be served, earliest deadline first. This rule meets all deadlines if any
schedule does, even one that serves fractions of sequences. Serving exactly w * B sequences of each component in every
block is such a schedule. So, after every block,

    floor(w * B * b) <= sequences served <= ceil(w * B * b)          exactly, for every component

and no count is negative. Computing a block takes 20 us. For random access, a checkpoint is kept every 256 blocks, and
the blocks in between are recomputed. When a block is first needed, all earlier blocks are computed, which takes 2 s
for a trillion tokens in sequences of 4,096. If this will take more than 4 s, a warning with an estimate is logged
first; by default, Python prints the warning on standard error.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

SCALE_BITS = 40
SCALE = 1 << SCALE_BITS
MAX_BLOCK = 1 << 16  # debts are at most MAX_BLOCK * 2^40, well within the range of int64
STRIDE = 256  # blocks between two checkpoints
CACHED_RUNS = 8  # runs of STRIDE blocks kept in memory; each takes 2 KiB per component
ANNOUNCED_BLOCKS, SECONDS_PER_BLOCK = 200_000, 20e-6  # computing more blocks than this (over 4 s) is announced


def fixed_point(weights: Sequence[float]) -> np.ndarray:
    """Scale positive weights to int64 values that sum to exactly 2^40 and are all at least 1.

    >>> fixed_point([3, 1]).tolist() == [3 * 2**38, 2**38]
    True
    """
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    owed = [weight / total * SCALE for weight in exact]
    parts = [max(1, int(share)) for share in owed]
    by_remainder = sorted(range(len(parts)), key=lambda i: (parts[i] - owed[i], i))
    missing = SCALE - sum(parts)
    for i in by_remainder[: max(0, missing)]:
        parts[i] += 1
    # If raising tiny values to 1 made the sum too large, the largest value is reduced.
    parts[parts.index(max(parts))] += min(0, missing)
    return np.array(parts, np.int64)


def serve_block(debt: np.ndarray, owed: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (sequences served, debt after the block): int64 [components] each. `owed`: the debt that a block adds."""
    debt = debt + owed
    counts = np.maximum(debt >> SCALE_BITS, 0)
    debt = debt - (counts << SCALE_BITS)
    free = block - int(counts.sum())
    if free:
        may = np.flatnonzero(debt > 0)
        deadline = -((debt[may] - SCALE) // owed[may])  # number of blocks until the next sequence is due, rounded up
        chosen = may[np.lexsort((may, -debt[may], deadline))[:free]]
        counts[chosen] += 1
        debt[chosen] -= SCALE
    return counts, debt


class BlockCounts:
    """The number of sequences of each component in any mixture block, and in all blocks before it."""

    def __init__(self, weights: Sequence[float], block: int) -> None:
        self.block = block
        self.parts: np.ndarray = fixed_point(weights)
        self._owed = self.parts * block
        nothing = np.zeros(len(weights), np.int64)
        self._checkpoints = [(nothing, nothing)]  # entry k is (served, debt) before block k * STRIDE
        self._announced = 0
        self._served = lru_cache(CACHED_RUNS)(self._make_served)

    def before(self, number: int) -> np.ndarray:
        """Return each component's number of sequences in blocks 0..number-1."""
        run, place = divmod(number, STRIDE)
        return self._served(run)[place]

    def of(self, number: int) -> np.ndarray:
        """Return each component's number of sequences in block `number`."""
        run, place = divmod(number, STRIDE)
        served = self._served(run)
        return served[place + 1] - served[place]

    def announce(self, number: int, what: str) -> None:
        """Log a warning if computing blocks up to `number` will take over 4 s. `what`: the operation that needs it."""
        ahead = number - max(self._announced, STRIDE * (len(self._checkpoints) - 1))
        if ahead > ANNOUNCED_BLOCKS:
            self._announced = number
            logging.getLogger(__name__).warning(
                f"{what} takes about {ahead * SECONDS_PER_BLOCK:.0f} s: it needs the shares of {ahead:,} mixture "
                f"blocks of {self.block:,} sequences; a larger `block` makes it faster"
            )

    def _make_served(self, run: int) -> np.ndarray:
        """Return how many sequences of each component were served before each mixture block of run `run` (STRIDE
        consecutive mixture blocks), and after the last of them: [STRIDE + 1, components]."""
        self.announce(run * STRIDE, "finding sequences far ahead in the mixture")
        while len(self._checkpoints) <= run:
            self._expand(len(self._checkpoints) - 1)
        return self._expand(run)

    def _expand(self, run: int) -> np.ndarray:
        served, debt = self._checkpoints[run]
        totals = np.empty((STRIDE + 1, len(served)), np.int64)
        totals[0] = served
        for place in range(STRIDE):
            counts, debt = serve_block(debt, self._owed, self.block)
            np.add(totals[place], counts, out=totals[place + 1])
        if len(self._checkpoints) == run + 1:
            self._checkpoints.append((totals[STRIDE].copy(), debt))
        return totals
