"""Determines the read that each row of a batch needs (a whole unit or one sequence), performs it, and estimates its
size.

If a component's window fits in memory, the component is read one unit (usually a block) at a time. If a component with
a full shuffle does not fit in memory, each of its sequences is read separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from datakit.loader.mixture.sequence_order import Pick, SequenceOrder
from datakit.loader.mixture.stream import Stream
from datakit.loader.mixture.window import Unit
from datakit.loader.sources.rows import Rows, View

WHOLE_UNIT = -1


class ReadKey(NamedTuple):
    """One read: a whole unit of a stream, or only the sequence with the index `sequence` in the unit."""

    stream: int
    unit: Unit
    sequence: int = WHOLE_UNIT


class RowReader:
    """Performs the reads of one run. `resident` holds True for each stream whose units are kept in memory."""

    def __init__(self, order: SequenceOrder, view: View) -> None:
        self._streams: Sequence[Stream] = order.streams
        self._view = view
        self.resident: list[bool] = [order.grants[name].resident for name in order.names]
        self.all_resident: bool = all(self.resident)

    def keys(self, pick: Pick) -> list[ReadKey]:
        """Return, for each row of a pick, the read that fetches it."""
        units = pick.window.units.take(pick.units)
        if self.resident[pick.stream]:
            return [ReadKey(pick.stream, unit) for unit in units]
        rows = zip(units, pick.sequences.tolist(), strict=True)
        return [ReadKey(pick.stream, unit, sequence) for unit, sequence in rows]

    def load(self, key: ReadKey) -> Rows:
        reader = self._streams[key.stream].reader
        if key.sequence == WHOLE_UNIT:
            return reader.load(key.unit, self._view)
        return reader.load_sequence(key.unit, key.sequence, self._view)

    def size(self, key: ReadKey) -> int:
        """Estimate how many bytes of memory the result of a read takes."""
        stream = self._streams[key.stream]
        tokens = stream.settings.block_tokens if key.sequence == WHOLE_UNIT else key.unit.length
        return tokens * (stream.source.dtype.itemsize + stream.source.has_loss_mask)
