"""What each child takes of memory: one small process beside the fork server looks, and kills what is over its budget.

So "out of memory" is known and not guessed from a signal. A bomb fills 4 GiB a second: what counts is how late a look
may come. A thread of the driver waits for the interpreter's lock, and the fork server for its own forks (1 ms, but 20
to 40 where more processes than CPUs want to run): both let bombs take half of a small budget more. The watcher does
nothing else; yet no process is sure to run in time on a busy machine. So a child that grows so fast that it might be
over its budget before it is seen again gets a *wall*: it may reserve no more than what is left of its budget, and a
twentieth. The kernel keeps that limit, whoever else runs. It falls when the child grows slowly, since libraries may
reserve more than they use. (That Arrow reserves little at a time, `forkserver_client.py` sees to.) A budget below 128
MiB is passed between two looks that are only somewhat late, so such a child has its wall from the start to the end; one
that reserves too much behind it is tried again with twice the budget, and then without.

A look costs 6 microseconds. The next one is due when the child, were it to fill memory four times as fast, would have
used up what is left: every 50 ms far from the budget, every quarter of a millisecond at it. The table is shared memory,
so neither end waits for the other; entries are used in turn, so a look at a dead child disturbs no new one.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import signal
import struct
import time
from dataclasses import dataclass

from datakit.engine.worker.memory_limits import SMALL_BUDGET, WALL, limit_reserves, reserve_limit, used_memory

SELDOM_SECONDS, OFTEN_SECONDS = 0.05, 0.00025
FASTEST_BYTES = 16 << 30  # a second; 4 were seen
LATE_SECONDS = 0.1  # a look may be, on a busy machine; with 0.02, a bomb just begun was often taken for slow
WALL_SECONDS = 0.25  # after the last fast growth
ENTRIES = 4096
CHILD = struct.Struct("<qqqq")  # pid, budget, bytes in use and reserved at its start: written by the fork server
SEEN = struct.Struct("<qq??")  # most in use, most reserved, was it killed, has it a wall: written by the watcher
ENTRY_BYTES = 64
NUMBER = struct.Struct("<q")
READING = struct.Struct("<qq??")
NAME = b"datakit-memory"  # as `ps` and `top` show it
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15


@dataclass(frozen=True)
class Reading:
    """What was seen of a child until its end: bytes inherited, the peak above them, and whether that was too much."""

    inherited: int = 0
    peak: int = 0
    over_budget: bool = False
    out_of_reserves: bool = False

    def pack(self) -> bytes:
        """To be sent."""
        return READING.pack(self.inherited, self.peak, self.over_budget, self.out_of_reserves)


class Gauges:
    """The fork server's end. Starts the watcher; `pid` is its process."""

    def __init__(self) -> None:
        """Forks: call it while the process is small."""
        self._table = mmap.mmap(-1, ENTRIES * ENTRY_BYTES)
        self._next = 0
        read, self.descriptor = os.pipe2(os.O_CLOEXEC)
        server, self.pid = os.getpid(), os.fork()
        if self.pid == 0:
            try:
                os.close(self.descriptor)
                die_with(server)
                ctypes.CDLL(None).prctl(PR_SET_NAME, NAME)
                _Watcher(self._table, read).run()
            finally:
                os._exit(1)
        os.close(read)

    def add(self, pid: int, budget: int) -> int:
        """Observer a child that has nothing to do yet; its entry."""
        entry, self._next = self._next, (self._next + 1) % ENTRIES
        SEEN.pack_into(self._table, entry * ENTRY_BYTES + CHILD.size, 0, 0, False, False)
        CHILD.pack_into(self._table, entry * ENTRY_BYTES, pid, budget, *used_memory(pid))
        os.write(self.descriptor, NUMBER.pack(entry))
        return entry

    def take(self, entry: int) -> Reading:
        """What was seen of a child that has ended."""
        _, budget, inherited, reserved = CHILD.unpack_from(self._table, entry * ENTRY_BYTES)
        peak, most, over, wall = SEEN.unpack_from(self._table, entry * ENTRY_BYTES + CHILD.size)
        CHILD.pack_into(self._table, entry * ENTRY_BYTES, 0, 0, 0, 0)
        return Reading(inherited, peak, over, wall or most > 0.95 * reserve_limit(reserved, budget))


@dataclass
class _Look:
    """The last look at a child; `fast`: when it was last seen to grow so fast that it needs a wall."""

    time: float = 0.0
    used: int = 0
    fast: float = -WALL_SECONDS
    due: float = 0.0

    def wall(self, now: float) -> bool:
        """Whether it has one: for a while, since a child that stands still may only be waiting for a CPU."""
        return now < self.fast + WALL_SECONDS


class _Watcher:
    """The watcher's process."""

    def __init__(self, table: mmap.mmap, news: int) -> None:
        self._table, self._news = table, news
        self._last: dict[int, _Look] = {}  # by entry

    def run(self) -> None:
        """Until the fork server goes."""
        while True:
            due = min((last.due for last in self._last.values()), default=None)
            wait = None if due is None else max(0.0, due - time.monotonic())
            if select.select([self._news], [], [], wait)[0]:
                news = os.read(self._news, 512 * NUMBER.size)
                if not news:
                    os._exit(0)
                self._last |= {entry: _Look() for (entry,) in NUMBER.iter_unpack(news)}
            now = time.monotonic()
            for entry in [entry for entry, last in self._last.items() if last.due <= now]:
                self._look(entry, self._last[entry])

    def _look(self, entry: int, last: _Look) -> None:
        start = entry * ENTRY_BYTES
        pid, budget, inherited, reserved_at_start = CHILD.unpack_from(self._table, start)
        if not pid:
            del self._last[entry]
            return
        now, (used, reserved) = time.monotonic(), used_memory(pid)
        room = budget - (used := used - inherited)
        fast = last.time > 0 and (used - last.used) / (now - last.time) * LATE_SECONDS > room
        look = _Look(now, used, now if fast else last.fast)
        look.due = now + min(max(room / FASTEST_BYTES, OFTEN_SECONDS), SELDOM_SECONDS)
        wall = look.wall(now)
        if wall or last.wall(last.time) or budget < SMALL_BUDGET:
            generous = reserve_limit(reserved_at_start, budget)
            walled = min(generous, reserved + max(0, room) + int(WALL * budget))
            limit_reserves(pid, walled if wall or budget < SMALL_BUDGET else generous)
        peak, most, over, _ = SEEN.unpack_from(self._table, start + CHILD.size)
        seen = max(peak, used), max(most, reserved), over or room < 0, wall
        SEEN.pack_into(self._table, start + CHILD.size, *seen)  # before it can be dead of it
        if room < 0:
            kill(pid)
        self._last[entry] = look


def kill(pid: int) -> None:
    """SIGKILL for a child and all that it has started."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)


def die_with(parent: int) -> None:
    """SIGKILL when the parent ends; it has to be single-threaded, since 'the parent' is the thread that forked."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
