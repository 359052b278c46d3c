"""Permutes the blocks of an epoch and the sequences of a window, and joins unread sequences when the length changes.

A unit is a block of the component's axis or, after a change of length, about a block's worth of the joined sequences;
it is usually read as a whole. A window is a list of units and a permutation of all their sequences. For each epoch and
sequence length in use, the index of each window's first sequence is kept in memory. A window that is a whole epoch (a
full shuffle) may have millions of blocks, so they are not listed. Only the index of the first sequence in each group of
16 blocks is kept; the sequences of individual blocks are counted again when needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from datakit.loader.mixture.packing import Packing, pack
from datakit.loader.mixture.sequence_counts import CountsByLength, SequenceCounts
from datakit.loader.permutation import InOrder, Order, Permutation, derive_key
from datakit.loader.sources.ranges import Pieces, cut, groups_of, join, merged
from datakit.loader.sources.token_source import BlockAxis

LISTED_BLOCKS = 1 << 15  # if an epoch has more blocks than this and is a single window, its blocks are not listed
GROUP = 16  # blocks in each group of such a window
MAX_TABLE = 1 << 20  # the order of a window of up to this many sequences is kept as a table, at 16 bytes per sequence
CACHED_WINDOWS = 6  # enough for the current and the next window, at both the old and the new length around a change


class Unit(NamedTuple):
    """A group of sequences of `length` tokens. If `joined` is negative, the group is block `number` of the axis.
    Otherwise, it is part `number` of the sequences that were joined at the start of stretch `joined` (see `stream.py`).
    """

    length: int
    number: int
    joined: int = -1


class ListedUnits(list[Unit]):
    """The units of a window, in their order before the window's sequences are shuffled. `counts` holds the number of
    sequences in each unit: int64 [units].
    """

    def __init__(self, units: Iterable[Unit], counts: np.ndarray) -> None:
        super().__init__(units)
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts

    def take(self, numbers: np.ndarray) -> list[Unit]:
        """Return the units at the indices `numbers`."""
        return [self[number] for number in numbers.tolist()]

    def find(self, sequences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (index of the unit, sequence within the unit) for the given sequences of the window: int64 arrays."""
        numbers = np.searchsorted(self._ends, sequences, side="right")
        return numbers, sequences - self._starts[numbers]


class EpochUnits:
    """All blocks of an epoch, permuted by `order`; no list of them is kept. The methods are those of ListedUnits."""

    def __init__(self, length: int, order: Order, counts: SequenceCounts) -> None:
        self._length, self._order, self._counts = length, order, counts
        self._group_starts = counts.window_starts(order, GROUP)

    def __getitem__(self, number: int) -> Unit:
        return self.take(np.array([number]))[0]

    def take(self, numbers: np.ndarray) -> list[Unit]:
        return [Unit(self._length, block) for block in self._order(numbers).tolist()]

    def find(self, sequences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        groups = np.unique(np.searchsorted(self._group_starts, sequences, side="right") - 1)
        numbers = groups[:, None] * GROUP + np.arange(GROUP)
        exists = numbers < self._order.size  # the last group may be smaller
        counts = np.zeros(numbers.shape, np.int64)
        counts[exists] = self._counts.counts(self._order(numbers[exists]))
        ends = (self._group_starts[groups][:, None] + np.cumsum(counts, axis=1)).ravel()
        found = np.searchsorted(ends, sequences, side="right")
        return numbers.ravel()[found], sequences - (ends - counts.ravel())[found]


class Window:
    """Sequences first..first+count-1 of a component: those of `units`, permuted by `order`."""

    def __init__(self, first: int, epoch: int, units: ListedUnits | EpochUnits, order: Order) -> None:
        self.first = first
        self.epoch = epoch
        self.units = units
        self.count: int = order.size
        self._order = order

    @cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        return self.units.find(self._order(np.arange(self.count)))

    def at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (index of the unit, sequence within the unit) for the given places in the window: int64 arrays."""
        if self.count <= MAX_TABLE:
            units, rows = self._table
            return units[places], rows[places]
        return self.units.find(self._order(places))

    def units_by_first_use(self, place: int, end: int) -> list[tuple[int, Unit]]:
        """Return (place of first use, unit) for the units used from `place` to `end` - 1, in the order of first use."""
        units, _ = self.at(np.arange(place, end))
        numbers, first = np.unique(units, return_index=True)
        order = np.argsort(first, kind="stable")
        return list(zip((place + first[order]).tolist(), self.units.take(numbers[order]), strict=True))


@dataclass(frozen=True)
class Joined:
    """The tokens left unread at a change of length, as sequences of the new length, in units of about a block each."""

    units: tuple[Pieces, ...]

    @cached_property
    def counts(self) -> np.ndarray:
        return np.array([unit.sequences for unit in self.units], np.int64)


def join_unread(
    unread: Pieces, length: int, block_tokens: int, packing: Packing | None, borders: np.ndarray | None
) -> Joined:
    """Join the unread rest of a window, in token order, into sequences of a new length. No token is dropped. For plain
    sequences, adjacent pieces are merged, and all pieces are laid end to end and cut; only the very last sequence may
    need padding. For packed sequences, adjacent pieces of a document are merged (never across the document boundaries
    `borders`). Pieces longer than the new length are cut, and all pieces are packed again, about a block at a time.
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
    """The settings that, together with the source, determine the order of a component's sequences."""

    name: str
    seed: int
    block_tokens: int
    window_blocks: int
    shuffled: bool
    packing: Packing | None


class EpochOrder:
    """The order of the blocks in each epoch of one component, and the windows of each epoch."""

    def __init__(self, axis: BlockAxis, settings: StreamSettings, counts: CountsByLength) -> None:
        self._axis, self._settings, self._counts = axis, settings, counts
        self.window_starts: Callable[[int, int], np.ndarray] = lru_cache(CACHED_WINDOWS)(self._window_starts)

    def permutation(self, size: int, *purpose: str | int) -> Order:
        """Return the order of `size` items for the given purpose, or the identity if the component is not shuffled."""
        if not self._settings.shuffled:
            return InOrder(size)
        return Permutation(size, derive_key(self._settings.seed, self._settings.name, *purpose))

    def window(self, first: int, length: int, epoch: int, number: int) -> Window:
        """Return window `number` of an epoch. The window's first sequence is sequence `first` of the component."""
        blocks, counts = self._blocks(epoch), self._counts.of(length)
        if LISTED_BLOCKS < self._axis.count <= self._settings.window_blocks:
            units, total = EpochUnits(length, blocks, counts), counts.total
        else:
            begin = number * self._settings.window_blocks
            chosen = blocks(np.arange(begin, min(begin + self._settings.window_blocks, self._axis.count)))
            sizes = counts.counts(chosen).astype(np.int64)
            units, total = ListedUnits((Unit(length, block) for block in chosen.tolist()), sizes), int(sizes.sum())
        return Window(first, epoch, units, self.permutation(total, "window", epoch, number))

    def _window_starts(self, epoch: int, length: int) -> np.ndarray:
        return self._counts.of(length).window_starts(self._blocks(epoch), self._settings.window_blocks)

    def _blocks(self, epoch: int) -> Order:
        return self.permutation(self._axis.count, "blocks", epoch)
