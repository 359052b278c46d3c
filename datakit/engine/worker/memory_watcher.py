"""Measures children's memory in a process beside the fork server, kills children over budget, and sets hard limits.

The engine therefore knows which children exceeded their budgets, and need not guess this from the signals that ended
them. A memory bomb (a task that allocates without limit) fills 4 GiB per second, so what matters is how late a
measurement may come. Measurements by a thread in the driver would have to wait for the interpreter's lock; those by the
fork server would have to wait for its forks (1 ms each, but 20 to 40 ms if there are more runnable processes than
CPUs). Either delay would let bombs exceed a small budget by half. The watcher has no other work that could delay a
measurement.

Yet on a busy machine, no process is certain to run in time. A child that grows fast enough to exceed its budget before
the next measurement therefore gets a hard limit, which the kernel enforces: the child may reserve its remaining budget
plus 5 % of the budget. The watcher lifts this limit once the child's growth has slowed, since libraries may reserve
more than they use. (`forkserver_client.py` makes Arrow reserve little at a time.) A budget below 128 MiB can be
exceeded between two slightly late measurements, so a child with such a budget keeps its hard limit throughout. If the
child reaches this limit, the task's next two attempts get two and four times the declared memory. Usually, this is more
than 128 MiB, so these attempts start without a hard limit.

A measurement takes 6 microseconds. The next one is due when the child, growing at four times the fastest rate seen,
could have used up its remaining budget: after 50 ms if the child is far below its budget, and after a quarter of a
millisecond if the child is close to its budget. The table of children is in shared memory, so neither the fork server
nor the watcher waits for the other. Entries are reused in rotation, so a late measurement of a dead child does not
affect a new child.

A child that runs several attempts in a row keeps its entry. When an attempt begins, the child itself writes the new
budget and its present use into the entry (`OwnMemory`) and announces the entry like a new one, so the watcher measures
it at once. While an entry is written or measured, its byte of a file is locked. The watcher therefore never applies the
budget of one attempt to the next one. It does not wait for a lock: it measures a little later.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import select
import signal
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from datakit.engine.worker.memory import (
    HARD_LIMIT_MARGIN,
    SMALL_BUDGET,
    backstop_limit,
    first_limit,
    limit_own_memory,
    peak_resident,
    set_memory_limit,
    used_memory,
)

# Seconds between two measurements of a child: 20 and 4,000 measurements per second take 0.01 and 2.4 % of a CPU.
LONGEST_INTERVAL, SHORTEST_INTERVAL = 0.05, 0.00025
FASTEST_GROWTH = 16 << 30  # bytes per second: four times the growth of the fastest bomb seen
LATENESS_SECONDS = 0.1  # assumed delay of a measurement on a busy machine; with 0.02, fast growth was often judged slow
HARD_LIMIT_SECONDS = 0.25  # a hard limit remains this long after fast growth: the child may just be waiting for a CPU
# Share of the limit that a child sets at its start (`first_limit`). If the child has reserved more than this share, its
# failed allocations are attributed to the limit.
NEAR_LIMIT = 0.95
ENTRIES = 4096  # size of the table; a fork server has far fewer children, and free entries are reused in rotation
CHILD = struct.Struct("<qqqq")  # a _Child, written by the fork server
OBSERVED = struct.Struct("<qqq??")  # an _Observed, written by the watcher
ENTRY_BYTES = 64
ENTRY_NUMBER = struct.Struct("<q")
MEMORY_USE = struct.Struct("<qq??")  # a MemoryUse, on the status pipe
PROCESS_NAME = b"datakit-memory"  # as shown by `ps` and `top`
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15  # <linux/prctl.h>


class MemoryUse(NamedTuple):
    """A child's memory use in its latest attempt: bytes in use when the attempt began, the peak beyond them, and the
    limits that were reached.
    """

    inherited: int = 0
    peak: int = 0
    over_budget: bool = False
    met_hard_limit: bool = False


class _Child(NamedTuple):
    """A child's table entry. inherited, reserved: the bytes in use and reserved when its attempt began. pid: 0 after
    the child's exit.
    """

    pid: int
    budget: int
    inherited: int
    reserved: int


class _Observed(NamedTuple):
    peak: int = 0
    most_reserved: int = 0
    most_shared: int = 0
    over_budget: bool = False
    limited: bool = False  # the child has a hard limit because it grows fast


class _Table:
    """The table of children, in memory that the fork server and the watcher share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, ENTRIES * ENTRY_BYTES)

    def child(self, entry: int) -> _Child:
        return _Child(*CHILD.unpack_from(self._memory, entry * ENTRY_BYTES))

    def observed(self, entry: int) -> _Observed:
        return _Observed(*OBSERVED.unpack_from(self._memory, entry * ENTRY_BYTES + CHILD.size))

    def set_child(self, entry: int, child: _Child) -> None:
        CHILD.pack_into(self._memory, entry * ENTRY_BYTES, *child)

    def set_observed(self, entry: int, observed: _Observed) -> None:
        OBSERVED.pack_into(self._memory, entry * ENTRY_BYTES + CHILD.size, *observed)


class _EntryLocks:
    """One lock per entry, held by a process until it releases the lock or ends. Two processes exclude each other."""

    def __init__(self) -> None:
        self._file = os.memfd_create("entry-locks")

    @contextlib.contextmanager
    def waiting(self, entry: int) -> Iterator[None]:
        """Hold the lock of an entry during the `with` block, after waiting for it."""
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, entry)
        try:
            yield
        finally:
            self.release(entry)

    def take(self, entry: int) -> bool:
        """Take the lock of an entry, if it is free. Return True if it was."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, entry)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def release(self, entry: int) -> None:
        """Release the lock of an entry."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, entry)


class OwnMemory:
    """A child's own view of what the watcher knows about it. inherited: the bytes in use when the child was forked."""

    def __init__(self, table: _Table, locks: _EntryLocks, announcements: int, entry: int) -> None:
        self._table, self._locks, self._announcements, self._entry = table, locks, announcements, entry
        self.inherited: int = 0

    def begin(self, budget: int) -> None:
        """Limit the memory of the child's first attempt. The fork server has written the entry."""
        self.inherited = self._table.child(self._entry).inherited
        limit_own_memory(budget)

    def begin_again(self, budget: int) -> None:
        """Give a further attempt of this child its budget, beyond what the child already uses."""
        with self._locks.waiting(self._entry):
            limit_own_memory(budget)
            own = used_memory("self")
            self._table.set_observed(self._entry, _Observed())
            self._table.set_child(self._entry, _Child(os.getpid(), budget, own.used, own.reserved))
        os.write(self._announcements, ENTRY_NUMBER.pack(self._entry))

    def peak(self) -> int:
        """Return the most memory, in bytes beyond `inherited`, that the child is known to have used in this attempt.

        The kernel notes the peak of resident memory, however short it was, but includes mapped files. At that moment,
        hardly more of these can have been resident than the most that was seen. If it was less, the true peak is
        higher than this measurement; the watcher's own measurements then come closer.
        """
        with self._locks.waiting(self._entry):
            seen, begun = self._table.observed(self._entry), self._table.child(self._entry)
        own = used_memory("self")
        resident = peak_resident() - max(own.shared, seen.most_shared)
        return max(seen.peak + begun.inherited, own.used, resident) - self.inherited

    def over_budget(self) -> bool:
        """Return True if the watcher has seen the attempt exceed its budget."""
        with self._locks.waiting(self._entry):
            return self._table.observed(self._entry).over_budget


class MemoryWatcher:
    """The fork server's handle to the watcher, which runs as the process `pid`."""

    def __init__(self) -> None:
        """Fork the watcher. Call this while the calling process still uses little memory."""
        self._table, self._locks, self._next = _Table(), _EntryLocks(), 0
        read, descriptor = os.pipe2(os.O_CLOEXEC)
        self.descriptor: int = descriptor
        server = os.getpid()
        self.pid: int = os.fork()
        if self.pid == 0:
            try:
                os.close(self.descriptor)
                die_with(server)
                ctypes.CDLL(None).prctl(PR_SET_NAME, PROCESS_NAME)
                _WatcherProcess(self._table, self._locks, read).run()
            finally:
                os._exit(1)
        os.close(read)

    def reserve(self) -> int:
        """Return the index of a free entry for the next child."""
        candidates = ((self._next + step) % ENTRIES for step in range(ENTRIES))
        entry = next((number for number in candidates if not self._table.child(number).pid), None)
        if entry is None:
            raise RuntimeError(f"the fork server has {ENTRIES} children; no more can be watched")
        self._next = (entry + 1) % ENTRIES
        return entry

    def own_memory(self, entry: int) -> OwnMemory:
        """Return, in the child for which this entry was reserved, the child's view of it."""
        return OwnMemory(self._table, self._locks, self.descriptor, entry)

    def add(self, entry: int, pid: int, budget: int) -> None:
        """Start watching a child that has no work yet, in the entry that was reserved for it."""
        own = used_memory(pid)
        self._table.set_observed(entry, _Observed())
        self._table.set_child(entry, _Child(pid, budget, own.used, own.reserved))
        os.write(self.descriptor, ENTRY_NUMBER.pack(entry))

    def remove(self, entry: int) -> MemoryUse:
        """Stop watching a child that has exited, and return its memory use."""
        child, observed = self._table.child(entry), self._table.observed(entry)
        self._table.set_child(entry, _Child(0, 0, 0, 0))
        near_limit = observed.most_reserved > NEAR_LIMIT * first_limit(child.reserved, child.budget)
        return MemoryUse(
            child.inherited, observed.peak, observed.over_budget, met_hard_limit=observed.limited or near_limit
        )


@dataclass
class _Measurement:
    """The last measurement of a child, the time of its last fast growth, and the time of its next measurement."""

    time: float = 0.0
    used: int = 0
    fast_growth: float = -HARD_LIMIT_SECONDS
    due: float = 0.0

    def limited(self, now: float) -> bool:
        """Return True if the child has a hard limit because it has grown fast."""
        return now < self.fast_growth + HARD_LIMIT_SECONDS


class _WatcherProcess:
    """The loop of the watcher process. `announcements`: the pipe through which it gets the indices of new entries."""

    def __init__(self, table: _Table, locks: _EntryLocks, announcements: int) -> None:
        self._table, self._locks, self._announcements = table, locks, announcements
        self._last: dict[int, _Measurement] = {}  # keyed by entry

    def run(self) -> None:
        """Measure until the fork server exits."""
        while True:
            due = min((last.due for last in self._last.values()), default=None)
            wait = None if due is None else max(0.0, due - time.monotonic())
            if select.select([self._announcements], [], [], wait)[0]:
                entries = os.read(self._announcements, 512 * ENTRY_NUMBER.size)
                if not entries:
                    os._exit(0)
                self._last |= {entry: _Measurement() for (entry,) in ENTRY_NUMBER.iter_unpack(entries)}
            now = time.monotonic()
            for entry in [entry for entry, last in self._last.items() if last.due <= now]:
                self._measure_if_free(entry, self._last[entry])

    def _measure_if_free(self, entry: int, last: _Measurement) -> None:
        if not self._locks.take(entry):  # the child is beginning or ending an attempt
            last.due = time.monotonic() + SHORTEST_INTERVAL
            return
        try:
            self._measure(entry, last)
        finally:
            self._locks.release(entry)

    def _measure(self, entry: int, last: _Measurement) -> None:
        child = self._table.child(entry)
        if not child.pid:
            del self._last[entry]
            return
        now, (used, reserved, shared) = time.monotonic(), used_memory(child.pid)
        used -= child.inherited
        left = child.budget - used
        grows_fast = last.time > 0 and (used - last.used) / (now - last.time) * LATENESS_SECONDS > left
        due = now + min(max(left / FASTEST_GROWTH, SHORTEST_INTERVAL), LONGEST_INTERVAL)
        self._last[entry] = current = _Measurement(now, used, now if grows_fast else last.fast_growth, due)
        limited = current.limited(now)
        if limited or last.limited(last.time) or child.budget < SMALL_BUDGET:
            _set_limit(child, reserved, left, limited)
        seen = self._table.observed(entry)
        over = seen.over_budget or left < 0
        most = max(seen.peak, used), max(seen.most_reserved, reserved), max(seen.most_shared, shared)
        seen = _Observed(*most, over, limited)
        self._table.set_observed(entry, seen)  # before the kill, so that the exit status never arrives first
        if left < 0:
            kill(child.pid)


def _set_limit(child: _Child, reserved: int, left: int, limited: bool) -> None:
    """Set the hard limit (bytes reserved now + remaining budget + 5 % of the budget) or the backstop limit."""
    limit = backstop_limit(child.reserved, child.budget)
    if limited or child.budget < SMALL_BUDGET:
        limit = min(limit, reserved + max(0, left) + int(HARD_LIMIT_MARGIN * child.budget))
    set_memory_limit(child.pid, limit)


def kill(pid: int) -> None:
    """Send SIGKILL to a child and to everything that it has started."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that forked it ends, so the parent must be single-threaded."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
