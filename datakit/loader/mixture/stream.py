"""Finds the epoch, window and block of the n-th sequence of a component, even after changes of the sequence length.

    epoch     a keyed permutation of the component's blocks, different in each epoch
    window    the next K blocks of the epoch; their sequences are in an order keyed by (component, epoch, window)
    stretch   consecutive sequences of one length; the next stretch starts where the run changes the length

A component is presented as an endless series of sequences, each of which can be found without reading those before it.
A change of length closes the current window. The window's unread sequences, in token order, are joined into sequences
of the new length, which form a window of their own. Then the epoch continues with its next blocks. Their order stays
the same, and they are cut into sequences of the new length. So no token of an epoch is lost or served twice because of
a change of length.

Memory: for each epoch in use, the index of each window's first sequence; for each of the few windows in use, the order
of its sequences.
Time: building a window of 16,384 sequences takes about 1 ms.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from datakit.loader.mixture.packing import Packing, pack_block
from datakit.loader.mixture.sequence_counts import CountsByLength
from datakit.loader.mixture.window import (
    CACHED_WINDOWS,
    EpochOrder,
    Joined,
    ListedUnits,
    StreamSettings,
    Unit,
    Window,
    join_unread,
)
from datakit.loader.sources.exclusions import NEVER, ExcludedTokens
from datakit.loader.sources.ranges import Pieces, plain
from datakit.loader.sources.rows import Rows, View, rows_of_pieces, rows_of_range
from datakit.loader.sources.token_source import BlockAxis, TokenSource

CACHED_PACKINGS = 64  # number of blocks whose packing is kept; each packing takes 16 bytes per document


@dataclass(frozen=True)
class Stretch:
    """The sequences of `length` tokens from sequence `first` on, up to the next change of length. The `joined`
    sequences come first, then the windows of epoch `epoch` from index `window` on, then further epochs.
    """

    first: int
    length: int
    epoch: int
    window: int
    joined: Joined | None

    @property
    def joined_count(self) -> int:
        return int(self.joined.counts.sum()) if self.joined else 0


class UnitReader:
    """Reads the units of a component: plain blocks, packed blocks, and sequences joined at a change of length. `joined`
    maps the index of a stretch to its joined sequences. The caller adds an entry when a change of length joins
    sequences.
    """

    def __init__(
        self,
        source: TokenSource,
        axis: BlockAxis,
        packing: Packing | None,
        joined: Mapping[int, Joined],
        excluded: ExcludedTokens | None = None,
    ) -> None:
        self._excluded = excluded
        self._source, self._axis, self._packing, self._joined = source, axis, packing, joined
        self._packed = lru_cache(CACHED_PACKINGS)(self._pack)

    def load(self, unit: Unit, view: View) -> Rows:
        if unit.joined < 0 and self._packing is None:
            start, stop = self._axis.range(unit.number)
            return rows_of_range(self._source, start, stop, unit.length, view, excluded=self._excluded)
        return self._load_pieces(self.pieces_of(unit), unit.length, view)

    def load_sequence(self, unit: Unit, sequence: int, view: View) -> Rows:
        """Read a single sequence of a unit, for a component that has a full shuffle and does not fit in memory."""
        return self._load_pieces(self.pieces_of(unit).take(np.array([sequence])), unit.length, view)

    def pieces_of(self, unit: Unit) -> Pieces:
        """Return the sequences of a unit as ranges on the token axis."""
        if unit.joined >= 0:
            return self._joined[unit.joined].units[unit.number]
        if self._packing is None:
            return plain(*self._axis.range(unit.number), unit.length)
        return self._packed(unit.number, unit.length)

    def excluded_from(self, position: int) -> int:
        """Return the batch from which on a token of the source is excluded, or NEVER."""
        return NEVER if self._excluded is None else int(self._excluded.read(position, position + 1)[0])

    def borders_near(self, pieces: Pieces) -> np.ndarray:
        """Return the document boundaries of all blocks in which at least one of the pieces starts."""
        blocks = np.unique(np.minimum(pieces.starts // self._axis.block_tokens, self._axis.count - 1))
        return np.concatenate([self._source.document_borders(*self._axis.range(block)) for block in blocks.tolist()])

    def _load_pieces(self, pieces: Pieces, length: int, view: View) -> Rows:
        whole = self._packing is not None
        return rows_of_pieces(self._source, pieces, length, view, whole_documents=whole, excluded=self._excluded)

    def _pack(self, block: int, length: int) -> Pieces:
        assert self._packing is not None
        return pack_block(self._source, self._axis, block, length, self._packing).pieces


class Stream:
    """The order in which the sequences of one component are served. For a packed component, `counts` maps a sequence
    length to the stored numbers of sequences in the blocks. Raises LoaderError if a length does not fit in a block, or
    if the stored counts do not match the source.
    """

    def __init__(
        self,
        source: TokenSource,
        settings: StreamSettings,
        length: int,
        counts: Mapping[int, np.ndarray] | None = None,
        excluded: ExcludedTokens | None = None,
    ) -> None:
        self.source = source
        self.settings = settings
        axis = BlockAxis(source.tokens, settings.block_tokens)
        self.counts: CountsByLength = CountsByLength(source, axis, settings.name, settings.packing, counts or {})
        self._epochs = EpochOrder(axis, settings, self.counts)
        self._joined: dict[int, Joined] = {}  # keyed by the index of the stretch
        self.reader: UnitReader = UnitReader(source, axis, settings.packing, self._joined, excluded)
        self._joined_window = lru_cache(CACHED_WINDOWS)(self._make_joined_window)
        self._regular_window = lru_cache(CACHED_WINDOWS)(self._epochs.window)
        self.stretches: list[Stretch] = [Stretch(0, length, 0, 0, None)]
        self.counts.of(length)

    def window_at(self, sequence: int) -> Window:
        number = self._stretch_at(sequence)
        stretch = self.stretches[number]
        offset = sequence - stretch.first
        if offset < stretch.joined_count:
            return self._joined_window(number)
        epoch, within, shift = self._in_epoch(stretch, offset - stretch.joined_count)
        starts = self._epochs.window_starts(epoch, stretch.length)
        window = int(np.searchsorted(starts, within, side="right")) - 1
        first = stretch.first + stretch.joined_count + shift + int(starts[window])
        return self._regular_window(first, stretch.length, epoch, window)

    def change_length(self, sequence: int, length: int) -> None:
        """Change the sequence length from sequence `sequence` on; calls must be in ascending order of `sequence`."""
        window = self.window_at(sequence)
        stretch, place = self.stretches[-1], sequence - window.first
        joined_window = window.units[0].joined >= 0
        following = stretch.window if joined_window else self._number_of(window, stretch) + (place > 0)
        joined = None
        if place or joined_window:
            joined = self._joined[len(self.stretches)] = self._join(window, place, length)
        self.stretches.append(Stretch(sequence, length, window.epoch, following, joined))
        self.counts.of(length)

    def upcoming(self, sequence: int) -> list[tuple[int, Unit]]:
        """Return (first sequence that needs the unit, unit) for each unit needed soon, in the order of first use. These
        are the units needed from `sequence` to the end of the next window.
        """
        window = self.window_at(sequence)
        end = window.first + window.count
        later = self._stretch_at(sequence) + 1
        if later < len(self.stretches):
            end = min(end, self.stretches[later].first)
        after = self.window_at(end)
        parts = ((window, sequence - window.first, end - window.first), (after, end - after.first, after.count))
        return [(part.first + at, unit) for part, a, b in parts for at, unit in part.units_by_first_use(a, b)]

    def epochs_at(self, sequence: int) -> float:
        """Return the number of epochs completed after `sequence` sequences, e.g. 1.25 for one and a quarter epochs."""
        stretch = self.stretches[self._stretch_at(sequence)]
        offset, total, left = sequence - stretch.first, self.counts.of(stretch.length).total, self._left(stretch)
        if offset >= left:
            return stretch.epoch + 1 + (offset - left) / total
        return stretch.epoch + 1 - (left - offset) / max(total, left)

    def end_of_epochs(self, epochs: int) -> int:
        """Return the number of sequences that have been served when `epochs` epochs are complete."""
        for number, stretch in enumerate(self.stretches):
            total = self.counts.of(stretch.length).total
            end = stretch.first + self._left(stretch) + (epochs - 1 - stretch.epoch) * total
            if number + 1 == len(self.stretches) or end <= self.stretches[number + 1].first:
                return end
        raise AssertionError("unreachable: the last stretch is endless")

    def _stretch_at(self, sequence: int) -> int:
        return bisect_right([stretch.first for stretch in self.stretches], sequence) - 1

    def _left(self, stretch: Stretch) -> int:
        """Return the number of sequences that a stretch serves in its first epoch, including the joined ones."""
        return stretch.joined_count + self.counts.of(stretch.length).total - self._begin_of(stretch)

    def _in_epoch(self, stretch: Stretch, offset: int) -> tuple[int, int, int]:
        """Return (epoch, sequence within the epoch, offset of the epoch's sequence 0) for the sequence at `offset`. All
        offsets are counted in sequences from the end of the stretch's joined sequences.
        """
        begin, total = self._begin_of(stretch), self.counts.of(stretch.length).total
        if offset < total - begin:
            return stretch.epoch, begin + offset, -begin
        more, within = divmod(offset - (total - begin), total)
        return stretch.epoch + 1 + more, within, total - begin + more * total

    def _begin_of(self, stretch: Stretch) -> int:
        """Return the index, within its epoch, of the first sequence after the stretch's joined sequences."""
        return int(self._epochs.window_starts(stretch.epoch, stretch.length)[stretch.window]) if stretch.window else 0

    def _number_of(self, window: Window, stretch: Stretch) -> int:
        starts = self._epochs.window_starts(window.epoch, stretch.length)
        _, within, _ = self._in_epoch(stretch, window.first - stretch.first - stretch.joined_count)
        return int(np.searchsorted(starts, within, side="right")) - 1

    def _make_joined_window(self, number: int) -> Window:
        stretch = self.stretches[number]
        assert stretch.joined is not None
        joined = (Unit(stretch.length, i, number) for i in range(len(stretch.joined.units)))
        order = self._epochs.permutation(stretch.joined_count, "joined", stretch.first)
        return Window(stretch.first, stretch.epoch, ListedUnits(joined, stretch.joined.counts), order)

    def _join(self, window: Window, place: int, length: int) -> Joined:
        """Join the window's sequences from `place` to the window's end into sequences of `length` tokens."""
        units, rows = window.at(np.arange(place, window.count))
        by_unit = np.argsort(units, kind="stable")
        numbers, first = np.unique(units[by_unit], return_index=True)
        chosen = zip(window.units.take(numbers), np.split(rows[by_unit], first[1:]), strict=True)
        parts = [self.reader.pieces_of(unit).take(sequences) for unit, sequences in chosen]
        unread, packing = Pieces.concatenate(parts), self.settings.packing
        borders = None if packing is None else self.reader.borders_near(unread)
        return join_unread(unread, length, self.settings.block_tokens, packing, borders)
