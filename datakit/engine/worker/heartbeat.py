"""Lets a child report to its parent, through shared memory, its progress and the records that it is processing.

The child writes to a few KiB of memory, which the parent can read even after the child's death. The parent learns how
far the child has come, when it last reported (to tell a hang from a slow task), and which records it was processing
when it died. Two slots alternately hold the range of records in progress, and one byte selects the valid slot. If a
child is killed during a write, the parent reads the old value or the new one, never a mixture. Each report takes less
than a microsecond.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass

from datakit.engine.task import RecordRange

# last update (ns of the monotonic clock), records read, bytes read, task index, bytes written before the task began
PROGRESS = struct.Struct("<QQQQQ")
VALID_SLOT = PROGRESS.size  # offset of the byte that selects the slot
HELD = struct.Struct("<qQQ")  # position, records, length of the file's name
NAME_BYTES = 4096  # PATH_MAX on Linux; longer names are truncated
SLOTS = (64, 64 + HELD.size + NAME_BYTES)
SIZE = SLOTS[1] + HELD.size + NAME_BYTES


@dataclass(frozen=True)
class HeartbeatState:
    """A snapshot of a heartbeat. `updated` is the time of the last report, in seconds on the monotonic clock, or 0 if
    there is none yet; `task` is the index of the current task in the attempt's batch; `written_before` is the number of
    bytes that the child had written when this task began.
    """

    updated: float
    records: int
    bytes_read: int
    task: int
    in_progress: RecordRange | None
    written_before: int = 0


class Heartbeat:
    """The child's or the parent's access to the shared memory of a heartbeat. `descriptor` is the memory's file
    descriptor, which the caller closes.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SIZE)
        self._task = self._records = self._bytes = self._written_before = 0

    def clear(self) -> None:
        """Forget all reports, before a child that has run an attempt gets another one."""
        self._memory[:] = bytes(SIZE)

    def begin(self, task: int, written: int = 0) -> None:
        """Report the start of the task with this index in the attempt's batch. `written`: the number of bytes that this
        process has written so far.
        """
        self._task, self._written_before = task, written
        self.release()
        self.report(0, 0)

    def report(self, records: int, bytes_read: int) -> None:
        """Report how many records and bytes of its input the task has read so far."""
        self._records, self._bytes = records, bytes_read
        self._beat()

    def hold(self, file: str, position: int, records: int = 1) -> None:
        """Report that `records` records are in progress, the first at `position` in `file`."""
        name = file.encode("utf-8", "surrogateescape")[:NAME_BYTES]
        unused = 1 - self._memory[VALID_SLOT]
        start = SLOTS[unused]
        HELD.pack_into(self._memory, start, position, records, len(name))
        self._memory[start + HELD.size : start + HELD.size + len(name)] = name
        self._memory[VALID_SLOT] = unused
        self._beat()

    def release(self) -> None:
        """Report that no record is in progress any longer."""
        self.hold("", 0, 0)

    def _beat(self) -> None:
        state = self._records, self._bytes, self._task, self._written_before
        PROGRESS.pack_into(self._memory, 0, time.monotonic_ns(), *state)

    def state(self) -> HeartbeatState:
        """Read the child's last report."""
        updated, records, bytes_read, task, written_before = PROGRESS.unpack_from(self._memory, 0)
        start = SLOTS[self._memory[VALID_SLOT]]
        position, count, length = HELD.unpack_from(self._memory, start)
        name = self._memory[start + HELD.size : start + HELD.size + length].decode("utf-8", "surrogateescape")
        in_progress = RecordRange(name, position, count) if count else None
        return HeartbeatState(updated / 1e9, records, bytes_read, task, in_progress, written_before)

    def updated(self) -> float:
        """Read only the time of the last update, in seconds on the monotonic clock."""
        return int.from_bytes(self._memory[:8], "little") / 1e9


def create_heartbeat_memory() -> int:
    """Create zeroed shared memory for a heartbeat, and return its file descriptor."""
    descriptor = os.memfd_create("heartbeat")
    os.ftruncate(descriptor, SIZE)
    return descriptor
