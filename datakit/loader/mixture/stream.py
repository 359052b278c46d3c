"""One component as an endless row of sequences: which tokens the n-th one holds, for any n, without reading any before.

    epoch     a keyed permutation of the component's blocks, a new one each time
    window    the next K blocks of it; their sequences, permuted, keyed by (component, epoch, window)
    phase     a stretch with one sequence length; the next begins where the run changes it

At a change of length the window that is open is left: its unread sequences, in token order, joined to the new length,
become a window of their own, and the epoch goes on with its next blocks, in the same order, cut to the new length. So
each token of an epoch is served once, whatever the lengths.

Memory: one number per window of an epoch, the tables of the few windows in use. Time: about 1 ms a window of 16,384.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np

from datakit.errors import LoaderError
from datakit.loader.mixture.packing import Counters, Packing, count_blocks, pack_block
from datakit.loader.mixture.sequence_order import Layout, PackedLayout, PlainLayout
from datakit.loader.mixture.window import Joined, Unit, Window, join_unread
from datakit.loader.permutation import InOrder, Order, Permutation, derive_key
from datakit.loader.sources.block_axis import BlockAxis
from datakit.loader.sources.ranges import Pieces, plain
from datakit.loader.sources.rows import Rows, View, rows_of_pieces, rows_of_range
from datakit.loader.sources.token_source import TokenSource

KEPT_WINDOWS = 6
KEPT_PACKINGS = 64
MOST_COUNTED = 4096  # blocks that the loader packs by itself to count their sequences
T = TypeVar("T")


@dataclass(frozen=True)
class Phase:
    """From sequence `first` on: sequences of `length`; `joined` first, then the epoch's windows from `window` on."""

    first: int
    length: int
    epoch: int
    window: int
    joined: Joined | None

    @property
    def joined_count(self) -> int:
        return int(self.joined.counts.sum()) if self.joined else 0


@dataclass(frozen=True)
class StreamSettings:
    """What, beside its source, decides a component's order."""

    name: str
    seed: int
    block_tokens: int
    window_blocks: int
    shuffled: bool
    packing: Packing | None


class Stream:
    """See the module. `counts` gives, by length, the sequences of each block of a packed component, where known."""

    def __init__(
        self, source: TokenSource, settings: StreamSettings, length: int, counts: dict[int, np.ndarray] | None = None
    ) -> None:
        self.source = source
        self.settings = settings
        self.axis = BlockAxis(source.tokens, settings.block_tokens)
        self.packing_counters: dict[int, Counters] = {}  # by length, where this stream counted its blocks itself
        self._counts = counts or {}
        self._layouts: dict[int, Layout] = {}
        self._lock = threading.RLock()
        self._windows: OrderedDict[tuple[int, int, int], Window] = OrderedDict()
        self._starts: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()
        self._packed = lru_cache(KEPT_PACKINGS)(self._pack)
        self.phases = [Phase(0, length, 0, 0, None)]
        self.layout(length)

    # ---- order

    def window_at(self, sequence: int) -> Window:
        """The window that serves sequence `sequence`."""
        with self._lock:
            number = bisect_right([phase.first for phase in self.phases], sequence) - 1
            phase = self.phases[number]
            offset = sequence - phase.first
            if offset < phase.joined_count:
                return _kept(self._windows, (number, phase.epoch, -1), KEPT_WINDOWS, lambda: self._joined(number))
            epoch, within, begin = self._in_epoch(phase, offset - phase.joined_count)
            starts = self._window_starts(epoch, phase.length)
            window = int(np.searchsorted(starts, within, side="right")) - 1
            first = phase.first + phase.joined_count + begin + int(starts[window])
            key = (number, epoch, window)
            return _kept(self._windows, key, KEPT_WINDOWS, lambda: self._regular(first, phase.length, epoch, window))

    def change_length(self, sequence: int, length: int) -> None:
        """From sequence `sequence` on, which is behind all earlier changes, sequences are `length` long."""
        window = self.window_at(sequence)
        phase, place = self.phases[-1], sequence - window.first
        joined_window = window.units[0].joined >= 0
        following = phase.window if joined_window else self._number_of(window, phase) + (place > 0)
        joined = None
        if place or joined_window:
            unread = self._pieces(window, np.arange(place, window.count))
            borders = None if self.settings.packing is None else self._borders(unread)
            joined = join_unread(unread, length, self.settings.block_tokens, self.settings.packing, borders)
        with self._lock:
            self.phases.append(Phase(sequence, length, window.epoch, following, joined))
        self.layout(length)

    def upcoming(self, sequence: int) -> list[tuple[int, Unit]]:
        """(sequence that needs it first, unit): from `sequence` to the end of the window after its own."""
        window = self.window_at(sequence)
        firsts = [phase.first for phase in self.phases]
        later = bisect_right(firsts, sequence)
        end = window.first + window.count
        if later < len(firsts):
            end = min(end, firsts[later])
        after = self.window_at(end)
        needed = window.units_by_first_use(sequence - window.first, end - window.first)
        following = after.units_by_first_use(end - after.first, after.count)
        return [(place + window.first, unit) for place, unit in needed] + [
            (place + after.first, unit) for place, unit in following
        ]

    def layout(self, length: int) -> Layout:
        """How many sequences of `length` the blocks give."""
        with self._lock:
            if length not in self._layouts:
                self._layouts[length] = self._make_layout(length)
            return self._layouts[length]

    def epochs_at(self, sequence: int) -> float:
        """How many epochs are over once `sequence` sequences are served: 1.25 is a quarter into the second."""
        phase = self.phases[bisect_right([phase.first for phase in self.phases], sequence) - 1]
        offset, total = sequence - phase.first, self.layout(phase.length).total
        left = phase.joined_count + total - self._begin_of(phase)
        if offset >= left:
            return phase.epoch + 1 + (offset - left) / total
        return phase.epoch + 1 - (left - offset) / max(total, left)

    def end_of_epochs(self, epochs: int) -> int:
        """How many sequences are served when `epochs` epochs are over."""
        for number, phase in enumerate(self.phases):
            total = self.layout(phase.length).total
            left = phase.joined_count + total - self._begin_of(phase)
            end = phase.first + left + (epochs - 1 - phase.epoch) * total
            if number + 1 == len(self.phases) or end <= self.phases[number + 1].first:
                return end
        raise AssertionError("the last phase has no end")

    # ---- content

    def load(self, unit: Unit, view: View) -> Rows:
        """Read a unit."""
        if unit.joined < 0 and self.settings.packing is None:
            start, stop = self.axis.range(unit.number)
            return rows_of_range(self.source, start, stop, unit.length, view)
        return self._load_pieces(self.pieces_of(unit), unit.length, view)

    def load_sequence(self, unit: Unit, sequence: int, view: View) -> Rows:
        """Read one sequence of a unit alone: what a full shuffle does where not everything fits in memory."""
        return self._load_pieces(self.pieces_of(unit).take(np.array([sequence])), unit.length, view)

    def pieces_of(self, unit: Unit) -> Pieces:
        """The sequences of a unit, as ranges of tokens."""
        if unit.joined >= 0:
            joined = self.phases[unit.joined].joined
            assert joined is not None
            return joined.units[unit.number]
        if self.settings.packing is None:
            return plain(*self.axis.range(unit.number), unit.length)
        return self._packed(unit.number, unit.length)

    # ---- inside

    def _load_pieces(self, pieces: Pieces, length: int, view: View) -> Rows:
        return rows_of_pieces(self.source, pieces, length, view, whole_documents=self.settings.packing is not None)

    def _in_epoch(self, phase: Phase, offset: int) -> tuple[int, int, int]:
        """(epoch, sequence within it, what to add to an epoch's sequence to get an offset) behind what was joined."""
        begin, total = self._begin_of(phase), self.layout(phase.length).total
        if offset < total - begin:
            return phase.epoch, begin + offset, -begin
        more, within = divmod(offset - (total - begin), total)
        return phase.epoch + 1 + more, within, total - begin + more * total

    def _begin_of(self, phase: Phase) -> int:
        """The first sequence of the phase's first window, within its epoch."""
        return int(self._window_starts(phase.epoch, phase.length)[phase.window]) if phase.window else 0

    def _window_starts(self, epoch: int, length: int) -> np.ndarray:
        def make() -> np.ndarray:
            return self.layout(length).window_starts(self._block_order(epoch), self.settings.window_blocks)

        with self._lock:
            return _kept(self._starts, (epoch, length), KEPT_WINDOWS, make)

    def _block_order(self, epoch: int) -> Order:
        return self._order(self.axis.count, "blocks", epoch)

    def _order(self, size: int, *purpose: str | int) -> Order:
        if not self.settings.shuffled:
            return InOrder(size)
        return Permutation(size, derive_key(self.settings.seed, self.settings.name, *purpose))

    def _regular(self, first: int, length: int, epoch: int, window: int) -> Window:
        begin = window * self.settings.window_blocks
        places = np.arange(begin, min(begin + self.settings.window_blocks, self.axis.count))
        blocks = self._block_order(epoch)(places)
        counts = self.layout(length).counts(blocks).astype(np.int64)
        units = [Unit(length, block) for block in blocks.tolist()]
        return Window(first, epoch, units, counts, self._order(int(counts.sum()), "window", epoch, window))

    def _joined(self, number: int) -> Window:
        phase = self.phases[number]
        assert phase.joined is not None
        units = [Unit(phase.length, i, number) for i in range(len(phase.joined.units))]
        order = self._order(phase.joined_count, "joined", phase.first)
        return Window(phase.first, phase.epoch, units, phase.joined.counts, order)

    def _number_of(self, window: Window, phase: Phase) -> int:
        """Which window of its epoch this is."""
        starts = self._window_starts(window.epoch, phase.length)
        _, within, _ = self._in_epoch(phase, window.first - phase.first - phase.joined_count)
        return int(np.searchsorted(starts, within, side="right")) - 1

    def _pieces(self, window: Window, places: np.ndarray) -> Pieces:
        units, rows = window.at(places)
        return Pieces.concatenate(
            [self.pieces_of(window.units[i]).take(rows[units == i]) for i in np.unique(units).tolist()]
        )

    def _borders(self, pieces: Pieces) -> np.ndarray:
        blocks = np.unique(np.minimum(pieces.starts // self.settings.block_tokens, self.axis.count - 1))
        return np.concatenate([self.source.document_borders(*self.axis.range(block)) for block in blocks.tolist()])

    def _pack(self, block: int, length: int) -> Pieces:
        assert self.settings.packing is not None
        return pack_block(self.source, self.axis, block, length, self.settings.packing).pieces

    def _make_layout(self, length: int) -> Layout:
        name, packing = self.settings.name, self.settings.packing
        if length > self.settings.block_tokens:
            raise LoaderError(
                f"component {name!r}: sequences of {length:,} tokens do not fit in blocks of "
                f"{self.settings.block_tokens:,}; raise block_tokens"
            )
        if packing is None:
            return PlainLayout(self.axis, length)
        counts = self._counts.get(length)
        if counts is None:
            counts = self._count(length, packing)
        if len(counts) != self.axis.count:
            raise LoaderError(
                f"component {name!r}: {packing.artefact(length)} counts {len(counts):,} blocks, "
                f"the source has {self.axis.count:,}; the counts belong to another cache or block size"
            )
        if not counts.sum():
            raise LoaderError(f"component {name!r}: no document fits in {length:,} tokens and too_long is 'drop'")
        return PackedLayout(counts)

    def _count(self, length: int, packing: Packing) -> np.ndarray:
        if self.axis.count > MOST_COUNTED:
            raise LoaderError(
                f"component {self.settings.name!r}: {self.axis.count:,} blocks are too many to pack while a run waits; "
                f"count {packing.artefact(length)} once with `datakit mixture pack`"
            )
        table = count_blocks(self.source, self.axis, range(self.axis.count), length, packing)
        self.packing_counters[length] = table.counters
        return table.sequences


def _kept(cache: OrderedDict, key: tuple, most: int, make: Callable[[], T]) -> T:
    """The value under `key`, made if absent; the least recently used one goes."""
    if key in cache:
        cache.move_to_end(key)
        return cache[key]
    value = cache[key] = make()
    if len(cache) > most:
        cache.popitem(last=False)
    return value
