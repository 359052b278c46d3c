"""Keeps children that have finished an attempt until another attempt of the same stage needs one.

Attempts may share a child if they need the same libraries and the same number of CPUs and belong to one stage, and if
none of them follows a failed attempt. Each child runs at most MOST_ATTEMPTS attempts, so that what a library leaks
cannot add up. A child that no attempt has needed for IDLE_SECONDS is ended soon afterward, so none outlives its stage
for long. The executor ends children earlier if there would be too many of them or if their memory is needed.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from datakit.engine.executor import Attempt
from datakit.engine.task import Preload
from datakit.engine.worker.handles.child_process import ChildProcess

IDLE_SECONDS = 0.5  # longer than it takes to plan the next phase of a small step
MOST_ATTEMPTS = 64  # chosen, not measured: starting a child then takes less than 1 % of the time of tiny attempts


@dataclass(frozen=True)
class Kind:
    """The properties that attempts must have in common to share a child."""

    stage: str
    preloads: tuple[Preload, ...]
    cpus: int


@dataclass(eq=False)
class _Idle:
    """An idle child, and since when it is idle, on the monotonic clock."""

    kind: Kind
    child: ChildProcess
    since: float = field(default_factory=time.monotonic)


@dataclass
class Seat:
    """The place of one attempt: the child in which it may run, if one was kept, and afterward the child to keep, if
    any. shared: False if the attempt needs a child of its own.
    """

    shared: bool
    child: ChildProcess | None = None

    @classmethod
    def of(cls, attempt: Attempt) -> Seat:
        """Return the seat of an attempt for which no child was kept."""
        return cls(shared=not attempt.own_child)

    def take(self) -> ChildProcess | None:
        """Remove and return the child."""
        child, self.child = self.child, None
        return child

    def may_stay(self, child: ChildProcess) -> bool:
        """Return True if the child may run another attempt after this one."""
        return self.shared and child.attempts + 1 < MOST_ATTEMPTS


def kind_of(attempt: Attempt) -> Kind | None:
    """Return the kind of an attempt, or None if it needs a child of its own."""
    return None if attempt.own_child else Kind(attempt.stage, attempt.preloads, attempt.cpus)


class KeptChildren:
    """The idle children of one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []  # the most recently used is last
        self._timer: threading.Timer | None = None

    def __len__(self) -> int:
        """Return the number of idle children."""
        return len(self._idle)

    def put(self, attempt: Attempt, child: ChildProcess) -> None:
        """Keep a child that has run this attempt, until it has been idle for IDLE_SECONDS."""
        kind = kind_of(attempt)
        assert kind is not None
        with self._lock:
            self._idle.append(_Idle(kind, child))
            self._start_timer()

    def take(self, attempt: Attempt) -> ChildProcess | None:
        """Remove and return a child in which the attempt may run; None if there is none."""
        kind = kind_of(attempt)
        with self._lock:
            found = next((one for one in reversed(self._idle) if one.kind == kind), None)
            if found is None:
                return None
            self._idle.remove(found)
            return found.child

    def surplus(self, most: int, most_bytes: int) -> list[ChildProcess]:
        """Remove and return the least recently used children until at most `most` are left, which hold at most
        `most_bytes` of memory. The caller ends them.
        """
        surplus = list[ChildProcess]()
        with self._lock:
            while self._idle and (len(self._idle) > most or sum(one.child.retained for one in self._idle) > most_bytes):
                surplus.append(self._idle.pop(0).child)
        return surplus

    def end(self) -> None:
        """End all idle children."""
        for child in self.surplus(0, 0):
            child.end()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(IDLE_SECONDS, self._end_old)
            self._timer.daemon = True
            self._timer.start()

    def _end_old(self) -> None:
        """End the children that have been idle for IDLE_SECONDS, and look again later if others are left."""
        with self._lock:
            before = time.monotonic() - IDLE_SECONDS
            old = [one.child for one in self._idle if one.since <= before]
            self._idle = [one for one in self._idle if one.since > before]
            self._timer = None
            if self._idle:
                self._start_timer()
        for child in old:
            child.end()
