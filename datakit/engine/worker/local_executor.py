"""Decides which attempts run at the same time on this machine, based on free slots, memory budgets and silent attempts.

Admission: the budgets of all running attempts add up to at most 85 % of the memory of the machine (or of this process's
cgroup), so that the kernel never has to kill a process for lack of memory. Attempts are admitted in the order in which
they were submitted. An attempt whose budget exceeds this limit runs alone. An exclusive attempt (see `Attempt`) also
runs alone if its budget per slot exceeds the memory divided by the number of slots. With a smaller budget, it runs
alongside others: they cannot take memory from it, and running a hundred memory bombs (tasks that allocate without
limit) one by one would delay all other attempts. The driver has one thread per child, which only waits for the child.

An attempt that has been silent for a quarter of its `hang_seconds` lends its slot (but not its memory) to the next
attempt until the silent attempt makes progress again. A hung task either uses no CPU time or wastes it, and without
this rule a few such tasks could block a whole machine for half an hour each. At most two attempts per slot run at a
time.

A child that has finished an attempt is kept for the next one of its kind (`handles/kept_children.py`). Kept and running
children together are never more than attempts have run at the same time. What kept children hold in memory counts
against the memory of all attempts; they are ended when an attempt needs this memory.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from functools import partial

from datakit.engine.executor import Attempt, Cause, Executor, Outcome
from datakit.engine.task import Preload
from datakit.engine.worker import child
from datakit.engine.worker.forkserver_client import ForkServerPool
from datakit.engine.worker.handles.child_process import ChildProcess
from datakit.engine.worker.handles.kept_children import KeptChildren, Seat
from datakit.engine.worker.memory import usable_memory
from datakit.engine.worker.run_attempt import run_attempt
from datakit.storage import stale_files

CLOSE_SECONDS = 10.0  # time for cleaning up after killed children; a hanging disk must not keep the driver running


class LocalExecutor(Executor):
    """The default backend, which runs attempts in forked children on this machine."""

    def __init__(self, workers: int | None = None, memory_bytes: int | None = None) -> None:
        """Let attempts use `workers` slots (by default, one per usable CPU) and `memory_bytes` of memory in total."""
        self._slots = workers or len(os.sched_getaffinity(0))
        self._memory = memory_bytes or usable_memory()
        self._servers = ForkServerPool()
        self._waiting: deque[Attempt] = deque()
        self._running: dict[int, Attempt] = {}  # keyed by id()
        self._retained: dict[int, int] = {}  # bytes that children kept from earlier attempts, keyed like `_running`
        self._kept, self._most_running = KeptChildren(), 0
        self._lending: set[int] = set()
        self._written: dict[int, int] = {}  # bytes written by running attempts, keyed like `_running`
        self._ended: queue.SimpleQueue[tuple[Outcome, threading.Event]] = queue.SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._cancelled: dict[str, threading.Event] = {}  # by step; set when the step's attempts are cancelled

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def compiling(self) -> bool:
        return self._servers.compiling

    def written(self, step_directory: str) -> int:
        with self._lock:
            own = (key for key, attempt in self._running.items() if attempt.step_directory == step_directory)
            return sum(self._written.get(key, 0) for key in own)

    def prepare(self, preloads: tuple[Preload, ...]) -> None:
        self._servers.prepare(preloads)

    def submit(self, attempt: Attempt) -> None:
        with self._lock:
            self._waiting.append(attempt)
        self._start_what_fits()

    def wait(self, timeout: float) -> list[Outcome]:
        ended: list[tuple[Outcome, threading.Event]] = []
        try:
            ended.append(self._ended.get(timeout=timeout))
            while True:
                ended.append(self._ended.get_nowait())
        except queue.Empty:
            return [outcome for outcome, cancelled in ended if not cancelled.is_set()]

    def cancel(self, *step_directories: str) -> None:
        """Kill the attempts of these steps, but keep the fork servers. A killed attempt keeps its slot and its
        memory until it has ended.
        """
        stopped = frozenset(step_directories)
        with self._lock:
            self._waiting = deque(one for one in self._waiting if one.step_directory not in stopped)
            for cancelled in [self._cancelled.pop(one) for one in stopped if one in self._cancelled]:
                cancelled.set()
        self._start_what_fits()

    def close(self) -> None:
        """Kill all running attempts and all fork servers, and remove what they left in the temporary folder."""
        with self._lock:
            self._waiting.clear()  # otherwise, attempts of one step would start once those of another are cancelled
        self.cancel(*self._cancelled)
        self._kept.end()
        self._servers.close()
        with self._lock:
            waited_for = list(self._threads)
        until = time.monotonic() + CLOSE_SECONDS
        for thread in waited_for:  # each removes the scratch directory of its attempt
            if thread.ident is not None:  # otherwise, a signal came before it started
                thread.join(max(0.0, until - time.monotonic()))
        self._kept.end()  # those that a thread kept in the meantime
        self._servers.close()  # those that a thread started in the meantime
        if waited_for:
            stale_files.remove_dead_scratch()  # files that the killed children had staged for a store

    def _start_what_fits(self) -> None:
        with self._lock:
            surplus, starting = list[ChildProcess](), list[threading.Thread]()
            while self._waiting and self._fits(self._waiting[0]):
                attempt = self._waiting.popleft()
                seat = Seat(not attempt.own_child, self._kept.take(attempt))
                if seat.child is not None and self._used_memory(attempt, seat.child) > self._memory:
                    surplus.append(seat.child)
                    seat.child = None
                self._running[id(attempt)] = attempt
                self._retained[id(attempt)] = seat.child.retained if seat.child is not None else 0
                self._most_running = max(self._most_running, len(self._running))
                surplus += self._surplus()
                cancelled = self._cancelled.setdefault(attempt.step_directory, threading.Event())
                starting.append(threading.Thread(target=self._run, args=(attempt, cancelled, seat), daemon=True))
            surplus += self._surplus()
            self._threads.update(starting)
        for idle in surplus:
            idle.end()
        for run in starting:
            run.start()

    def _surplus(self) -> list[ChildProcess]:
        """Remove and return the idle children that are to end."""
        return self._kept.surplus(self._most_running - len(self._running), self._memory - self._used_memory())

    def _used_memory(self, more: Attempt | None = None, kept: ChildProcess | None = None) -> int:
        """Return the memory that running attempts, and one more in a kept child, may use, in bytes."""
        running = sum(attempt.memory_bytes for attempt in self._running.values()) + sum(self._retained.values())
        return running + (more.memory_bytes if more is not None else 0) + (kept.retained if kept is not None else 0)

    def _fits(self, attempt: Attempt) -> bool:
        if not self._running:
            return True
        if any(map(self._runs_alone, (attempt, *self._running.values()))):
            return False
        lent = sum(running.cpus for key, running in self._running.items() if key in self._lending)
        cpus = sum(running.cpus for running in self._running.values()) + attempt.cpus
        memory = self._used_memory(attempt)
        return cpus <= self._slots + min(lent, self._slots) and memory <= self._memory

    def _runs_alone(self, attempt: Attempt) -> bool:
        return attempt.exclusive and attempt.memory_bytes > attempt.cpus * self._memory // self._slots

    def _run(self, attempt: Attempt, cancelled: threading.Event, seat: Seat) -> None:
        try:
            reports = partial(self._lend_slot, attempt), partial(self._note_written, attempt)
            outcome = run_attempt(attempt, self._servers, cancelled, *reports, seat=seat)
        except BaseException as error:  # noqa: BLE001 - the driver would wait forever for an attempt without an outcome
            message = f"the engine itself failed: {child.describe_error(error)['message']}"
            outcome = Outcome.of(attempt, Cause.INFRASTRUCTURE, message=message)
        self._ended.put((outcome, cancelled))
        with self._lock:
            self._threads.discard(threading.current_thread())
            self._running.pop(id(attempt), None)
            self._retained.pop(id(attempt), None)
            if seat.child is not None:
                self._kept.put(attempt, seat.child)
            self._lending.discard(id(attempt))
            self._written.pop(id(attempt), None)
        self._start_what_fits()

    def _note_written(self, attempt: Attempt, written: int) -> None:
        with self._lock:
            if id(attempt) in self._running:
                self._written[id(attempt)] = written

    def _lend_slot(self, attempt: Attempt, silent: bool) -> None:
        key = id(attempt)
        with self._lock:
            if silent == (key in self._lending) or key not in self._running:
                return
            self._lending ^= {key}
        self._start_what_fits()
