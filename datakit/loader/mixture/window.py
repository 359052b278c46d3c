"""Orders the blocks of each epoch in windows, and joins sequences left unread when the sequence length changes.

A unit is read as a whole. It is a block of the component's axis, or about a block's worth of the sequences joined at a
change of length. A window is a list of units and a permutation of all their sequences. Memory: one number per window of
an epoch, for the epochs and lengths in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from datakit.loader.mixture.packing import Packing, pack
from datakit.loader.mixture.sequence_counts import CountsByLength
from datakit.loader.permutation import InOrder, Order, Permutation, derive_key
from datakit.loader.sources.ranges import Pieces, cut, groups_of, join, merged
from datakit.loader.sources.token_source import BlockAxis

MAX_TABLE = 1 << 20  # maximum number of sequences in a window whose order is kept as a table; 16 bytes each
CACHED_WINDOWS = 6  # the current and next windows, for each of the lengths around a change of length


class Unit(NamedTuple):
    """Block `number` of the axis or, if `joined` >= 0, unit `number` of the sequences joined at stretch `joined`."""

    length: int
    number: int
    joined: int = -1


class Window:
    """Sequences first..first+count-1 of a component. `counts` has the number per unit: int64 [units]."""

    def __init__(self, first: int, epoch: int, units: Sequence[Unit], counts: np.ndarray, order: Order) -> None:
        self.first = first
        self.epoch = epoch
        self.units = units
        self.count = order.size
        self._order = order
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts

    @cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        return self._find(self._order(np.arange(self.count)))

    def at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (index of the unit, sequence within it) for places in the window: int64 arrays like `places`."""
        if self.count <= MAX_TABLE:
            units, rows = self._table
            return units[places], rows[places]
        return self._find(self._order(places))

    def units_by_first_use(self, place: int, end: int) -> list[tuple[int, Unit]]:
        """Return (first place, unit) of the units that places place..end-1 need, in the order of first use."""
        units, _ = self.at(np.arange(place, end))
        numbers, first = np.unique(units, return_index=True)
        order = np.argsort(first, kind="stable")
        return [(place + int(first[i]), self.units[int(numbers[i])]) for i in order]

    def _find(self, sequences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        units = np.searchsorted(self._ends, sequences, side="right")
        return units, sequences - self._starts[units]


@dataclass(frozen=True)
class Joined:
    """Sequences left unread at a change of length, joined to the new length, in units of about a block."""

    units: tuple[Pieces, ...]

    @cached_property
    def counts(self) -> np.ndarray:
        return np.array([unit.sequences for unit in self.units], np.int64)


def join_unread(
    unread: Pieces, length: int, block_tokens: int, packing: Packing | None, borders: np.ndarray | None
) -> Joined:
    """Join the unread rest of a window, in token order, into sequences of a new length.

    Plain sequences: adjacent pieces are merged, then all are laid end to end and cut; only the very last sequence is
    padded. Packed sequences: adjacent pieces of a document are merged (never across `borders`), cut only if longer
    than the new length, and packed again, about a block at a time. No token is dropped.
    """
    starts, lengths = merged(unread.starts, unread.lengths, borders)
    if packing is None:
        pieces = join(starts, lengths, length)
        size = max(1, block_tokens // length)
        edges = range(0, pieces.sequences, size)
        return Joined(tuple(pieces.take(np.arange(i, min(i + size, pieces.sequences))) for i in edges))
    starts, lengths, _ = cut(starts, lengths, np.full(len(starts), length))
    groups = groups_of(lengths, block_tokens)
    return Joined(tuple(pack(starts[g], lengths[g], length, packing.max_documents).pieces for g in groups))


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
        """Return the order of `size` items for this purpose; the identity if the component is not shuffled."""
        if not self._settings.shuffled:
            return InOrder(size)
        return Permutation(size, derive_key(self._settings.seed, self._settings.name, *purpose))

    def window(self, first: int, length: int, epoch: int, number: int) -> Window:
        """Return window `number` of an epoch; its first sequence is the component's sequence `first`."""
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
