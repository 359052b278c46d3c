"""Computes how many sequences of a given length each block holds; refuses lengths greater than the block size, and
stored counts for a different number of blocks.

A plain component needs no table: every block except the last holds the same number of sequences. A packed component
needs one count per block (4 bytes per million tokens).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np

from datakit.errors import LoaderError
from datakit.loader.mixture.packing import Counters, Packing, count_blocks
from datakit.loader.permutation import Order
from datakit.loader.sources.token_source import BlockAxis, TokenSource

BLOCKS_AT_ONCE = 1 << 18  # number of blocks whose counts are added up at a time, at about 100 bytes of memory each
MAX_COUNTED_BLOCKS = 4096  # maximum number of blocks to count at startup (by default, 4 G tokens; takes about 3 s)


class PlainCounts:
    """Sequence counts of blocks cut into sequences of `length` tokens; a block's last sequence may need padding."""

    def __init__(self, axis: BlockAxis, length: int) -> None:
        self.axis = axis
        start, stop = axis.range(axis.count - 1)
        self._usual = -(-axis.block_tokens // length)
        self._last = -(-(stop - start) // length)
        self.total: int = (axis.count - 1) * self._usual + self._last

    def counts(self, blocks: np.ndarray) -> np.ndarray:
        """Return the number of sequences in each of the given blocks."""
        return np.where(blocks == self.axis.count - 1, self._last, self._usual)

    def window_starts(self, order: Order, window_blocks: int) -> np.ndarray:
        """Return the index of each window's first sequence in this block order, then the total: int64 [windows + 1]."""
        count = self.axis.count
        place = int(order.inverse(np.array([count - 1]))[0])
        blocks = np.minimum(np.arange(-(-count // window_blocks) + 1) * window_blocks, count)
        return blocks * self._usual + np.where(blocks > place, self._last - self._usual, 0)


class PackedCounts:
    """One sequence count per block, for blocks whose documents are packed. The methods are those of `PlainCounts`."""

    def __init__(self, counts: np.ndarray) -> None:
        self._counts = counts
        self.total: int = int(counts.sum())

    def counts(self, blocks: np.ndarray) -> np.ndarray:
        return self._counts[blocks]

    def window_starts(self, order: Order, window_blocks: int) -> np.ndarray:
        count = len(self._counts)
        sums = np.zeros(-(-count // window_blocks), np.int64)
        for first in range(0, count, BLOCKS_AT_ONCE):
            places = np.arange(first, min(first + BLOCKS_AT_ONCE, count))
            np.add.at(sums, places // window_blocks, self._counts[order(places)])
        return np.concatenate([[0], np.cumsum(sums)])


SequenceCounts = PlainCounts | PackedCounts


class CountsByLength:
    """The sequence counts of one component for each sequence length. `stored` holds counts of a packed component, keyed
    by length; for any other length, the sequences in the component's blocks are counted on demand.
    """

    def __init__(
        self, source: TokenSource, axis: BlockAxis, name: str, packing: Packing | None, stored: Mapping[int, np.ndarray]
    ) -> None:
        self.packing_counters: dict[int, Counters] = {}  # keyed by length; no entry for a length with stored counts
        self._source, self._axis, self._name, self._packing, self._stored = source, axis, name, packing, stored
        self._made: dict[int, SequenceCounts] = {}
        self._lock = threading.Lock()

    def of(self, length: int) -> SequenceCounts:
        """Return the counts for sequences of `length` tokens. Raises LoaderError if no sequence of this length can be
        made, if stored counts do not match the source, or if there are none and MAX_COUNTED_BLOCKS is exceeded.
        """
        with self._lock:
            if length not in self._made:
                self._made[length] = self._make(length)
            return self._made[length]

    def _make(self, length: int) -> SequenceCounts:
        if length > self._axis.block_tokens:
            raise LoaderError(
                f"component {self._name!r}: sequences of {length:,} tokens do not fit in blocks of "
                f"{self._axis.block_tokens:,}; raise block_tokens"
            )
        if self._packing is None:
            return PlainCounts(self._axis, length)
        counts = self._stored.get(length)
        if counts is None:
            counts = self._count(length, self._packing)
        if len(counts) != self._axis.count:
            raise LoaderError(
                f"component {self._name!r}: {self._packing.counts_name(length)} has counts for {len(counts):,} blocks, "
                f"but the source has {self._axis.count:,}; the counts are for another cache or block size"
            )
        if not counts.sum():
            raise LoaderError(
                f"component {self._name!r}: no document fits in {length:,} tokens, and too_long is 'drop'"
            )
        return PackedCounts(counts)

    def _count(self, length: int, packing: Packing) -> np.ndarray:
        if self._axis.count > MAX_COUNTED_BLOCKS:
            raise LoaderError(
                f"component {self._name!r}: {self._axis.count:,} blocks are too many to pack at the start of a run; "
                f"run `datakit mixture pack` once on the mixture file or the run file, to store their counts as "
                f"{packing.counts_name(length)}"
            )
        table = count_blocks(self._source, self._axis, range(self._axis.count), length, packing)
        self.packing_counters[length] = table.counters
        return table.sequences
