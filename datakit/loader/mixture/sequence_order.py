"""How many sequences of one length the blocks give, and in which window of an epoch's block order a sequence lies.

A plain component needs no table: every block but the last gives the same number. A packed one needs one count a block
(4 bytes for a million tokens). Either way an epoch costs one number per window of blocks.
"""

from __future__ import annotations

import numpy as np

from datakit.loader.permutation import Order
from datakit.loader.sources.block_axis import BlockAxis


class PlainLayout:
    """Blocks cut into sequences of `length`, each block's last one padded where it does not fit."""

    def __init__(self, axis: BlockAxis, length: int) -> None:
        self.axis = axis
        start, stop = axis.range(axis.count - 1)
        self._usual = -(-axis.block_tokens // length)
        self._last = -(-(stop - start) // length)
        self.total = (axis.count - 1) * self._usual + self._last

    def counts(self, blocks: np.ndarray) -> np.ndarray:
        """Sequences of each of these blocks."""
        return np.where(blocks == self.axis.count - 1, self._last, self._usual)

    def window_starts(self, order: Order, window_blocks: int) -> np.ndarray:
        """The first sequence of each window of `order`, and, last, the total."""
        count = self.axis.count
        place = int(order.inverse(np.array([count - 1]))[0])
        blocks = np.minimum(np.arange(-(-count // window_blocks) + 1) * window_blocks, count)
        return blocks * self._usual + np.where(blocks > place, self._last - self._usual, 0)


class PackedLayout:
    """Blocks whose documents are packed: one count a block."""

    def __init__(self, counts: np.ndarray) -> None:
        self._counts = counts
        self.total = int(counts.sum())

    def counts(self, blocks: np.ndarray) -> np.ndarray:
        """Sequences of each of these blocks."""
        return self._counts[blocks]

    def window_starts(self, order: Order, window_blocks: int) -> np.ndarray:
        """The first sequence of each window of `order`, and, last, the total."""
        count = len(self._counts)
        shuffled = self._counts[order(np.arange(count))].astype(np.int64)
        sums = np.add.reduceat(shuffled, np.arange(0, count, window_blocks))
        return np.concatenate([[0], np.cumsum(sums)])


Layout = PlainLayout | PackedLayout
