"""What a child says of itself without sending anything: how far it is, and which record it has in hand.

A few KiB of shared memory, written by the child and read by the parent, also after the child's death. It gives
progress, the time of the last movement (so a hang can be told from hard work), and the place of the record that killed
it.

Two slots hold the record in hand by turns, and one byte says which one counts, so a child that is killed in the middle
of a write leaves the old record or the new one, never a mixture. Cost: under a microsecond a call.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass

from datakit.engine.task import RecordRange

PROGRESS = struct.Struct("<QQQQ")  # last movement (ns of the machine's monotonic clock), records, bytes, task
WHICH = PROGRESS.size
HELD = struct.Struct("<qQQ")  # position, records, length of the file's name
NAME_BYTES = 4096
SLOTS = (64, 64 + HELD.size + NAME_BYTES)
SIZE = SLOTS[1] + HELD.size + NAME_BYTES


@dataclass(frozen=True)
class View:
    """A look at a cursor. moved: monotonic seconds, 0 where the child has not begun; task: its number in the batch."""

    moved: float
    records: int
    bytes_read: int
    task: int
    held: RecordRange | None


class Cursor:
    """Either end of the shared memory behind `descriptor`, which stays the caller's."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SIZE)
        self._task = self._records = self._bytes = 0

    def begin(self, task: int) -> None:
        """The task of this number in the attempt's batch begins."""
        self._task = task
        self.release()
        self.report(0, 0)

    def report(self, records: int, bytes_read: int) -> None:
        """Progress of the task so far."""
        self._records, self._bytes = records, bytes_read
        self._move()

    def hold(self, file: str, position: int, records: int = 1) -> None:
        """These records are in hand: `records` of them, the first at `position` of `file`."""
        name = file.encode("utf-8", "surrogateescape")[:NAME_BYTES]
        other = 1 - self._memory[WHICH]
        start = SLOTS[other]
        HELD.pack_into(self._memory, start, position, records, len(name))
        self._memory[start + HELD.size : start + HELD.size + len(name)] = name
        self._memory[WHICH] = other
        self._move()

    def release(self) -> None:
        """No record is in hand."""
        self.hold("", 0, 0)

    def _move(self) -> None:
        PROGRESS.pack_into(self._memory, 0, time.monotonic_ns(), self._records, self._bytes, self._task)

    def view(self) -> View:
        """What the child said last."""
        moved, records, bytes_read, task = PROGRESS.unpack_from(self._memory, 0)
        start = SLOTS[self._memory[WHICH]]
        position, count, length = HELD.unpack_from(self._memory, start)
        name = self._memory[start + HELD.size : start + HELD.size + length].decode("utf-8", "surrogateescape")
        return View(moved / 1e9, records, bytes_read, task, RecordRange(name, position, count) if count else None)

    def moved(self) -> float:
        """The time of the last movement, as in `view`."""
        return int.from_bytes(self._memory[:8], "little") / 1e9


def create() -> int:
    """A descriptor of fresh memory for a cursor."""
    descriptor = os.memfd_create("cursor")
    os.ftruncate(descriptor, SIZE)
    return descriptor
