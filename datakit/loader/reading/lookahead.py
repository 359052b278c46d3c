"""Decides which blocks and sequences are read ahead (for each stream's current and next window) and in which order.

The list of reads, most urgent first, is recomputed when a window starts and once per mixture block, so most batches
require only a few comparisons. If any component's sequences are read one at a time, the list is recomputed for each
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from datakit.loader.mixture.sequence_order import Pick, SequenceOrder
from datakit.loader.mixture.window import Unit
from datakit.loader.reading.block_pool import BlockPool
from datakit.loader.reading.row_reader import ReadKey, RowReader

STAGE_AHEAD = 4  # reading of a stage's components begins this many mixture blocks before the stage
ROWS_AHEAD = 8  # sequences that are read one at a time (full shuffle) are read up to this many batches ahead


class Lookahead:
    """Keeps a pool's list of wanted reads up to date. `own_rows(step)` returns (first, end) of this host's rows."""

    def __init__(
        self, order: SequenceOrder, reader: RowReader, pool: BlockPool, own_rows: Callable[[int], tuple[int, int]]
    ) -> None:
        self._order, self._reader, self._pool, self._own_rows = order, reader, pool, own_rows
        self._block = order.mixture.block
        self._windows: dict[int, int] = {}  # per stream, the first sequence of its current window
        self._needs: dict[int, list[tuple[int, Unit]]] = {}  # per stream, the units for its current and next window
        self._next_update = 0  # slot at which the list must be recomputed

    def reset(self) -> None:
        self._windows.clear()
        self._next_update = 0
        self._pool.want(())

    def update(self, step: int, stop: int | None, picks: Sequence[Pick]) -> None:
        """Request the reads for batch `step`, which consists of `picks`, and for the batches after it, up to `stop`."""
        slot = self._order.axis.first_slot(step)
        current = {pick.stream: pick.window.first for pick in reversed(picks)}
        changed = any(self._windows.get(number) != first for number, first in current.items())
        if not changed and slot < self._next_update and self._reader.all_resident:
            return
        self._next_update = slot + self._block
        singles = () if self._reader.all_resident else self._single_sequences(step, stop)
        self._pool.want([*singles, *self._units(slot)])

    def _units(self, slot: int) -> list[ReadKey]:
        """Return the reads of whole units, ordered by the estimated number of slots until they are needed."""
        served = self._order.slot_order.served(slot).tolist()
        shares = self._order.slot_order.shares(slot, slot + STAGE_AHEAD * self._block)
        urgent = [
            ((first - served[i]) / share, i, unit)
            for i, share in enumerate(shares)
            if share and self._reader.resident[i]
            for first, unit in self._upcoming(i, served[i])
        ]
        return [ReadKey(i, unit) for _, i, unit in sorted(urgent)]

    def _upcoming(self, number: int, served: int) -> list[tuple[int, Unit]]:
        """Return (first sequence, unit) for each unit that a stream needs until the end of its next window. Cached."""
        stream = self._order.streams[number]
        first = stream.window_at(served).first
        if self._windows.get(number) != first:
            self._windows[number] = first
            self._needs[number] = stream.upcoming(served)
        return self._needs[number]

    def _single_sequences(self, step: int, stop: int | None) -> list[ReadKey]:
        end = step + ROWS_AHEAD if stop is None else min(step + ROWS_AHEAD, stop)
        picks = (pick for ahead in range(step, end) for pick in self._order.picks(ahead, *self._own_rows(ahead)))
        return [key for pick in picks if not self._reader.resident[pick.stream] for key in self._reader.keys(pick)]
