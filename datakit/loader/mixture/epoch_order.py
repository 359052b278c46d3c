"""Orders the blocks of each epoch and cuts that order into windows.

Memory: one number per window of an epoch, for the epochs and lengths in use.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from datakit.loader.mixture.packing import Packing
from datakit.loader.mixture.sequence_counts import CountsByLength
from datakit.loader.mixture.window import Unit, Window
from datakit.loader.permutation import InOrder, Order, Permutation, derive_key
from datakit.loader.sources.token_source import BlockAxis

CACHED_WINDOWS = 6  # the current and the next window, at the lengths around a change


@dataclass(frozen=True)
class StreamSettings:
    """Everything that decides a component's order, except its source."""

    name: str
    seed: int
    block_tokens: int
    window_blocks: int
    shuffled: bool
    packing: Packing | None


class EpochOrder:
    """The block order and windows of every epoch of one component."""

    def __init__(self, axis: BlockAxis, settings: StreamSettings, counts: CountsByLength) -> None:
        self._axis, self._settings, self._counts = axis, settings, counts
        self.window_starts = lru_cache(CACHED_WINDOWS)(self._window_starts)

    def permutation(self, size: int, *purpose: str | int) -> Order:
        """The component's order of `size` things for this purpose; the identity if it is not shuffled."""
        if not self._settings.shuffled:
            return InOrder(size)
        return Permutation(size, derive_key(self._settings.seed, self._settings.name, *purpose))

    def window(self, first: int, length: int, epoch: int, number: int) -> Window:
        """Window `number` of an epoch, whose first sequence is the component's sequence `first`."""
        begin = number * self._settings.window_blocks
        places = np.arange(begin, min(begin + self._settings.window_blocks, self._axis.count))
        blocks = self._blocks(epoch)(places)
        counts = self._counts.of(length).counts(blocks).astype(np.int64)
        units = [Unit(length, block) for block in blocks.tolist()]
        return Window(first, epoch, units, counts, self.permutation(int(counts.sum()), "window", epoch, number))

    def _window_starts(self, epoch: int, length: int) -> np.ndarray:
        return self._counts.of(length).window_starts(self._blocks(epoch), self._settings.window_blocks)

    def _blocks(self, epoch: int) -> Order:
        return self.permutation(self._axis.count, "blocks", epoch)
