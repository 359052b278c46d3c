"""Keeps children that have finished an attempt until another attempt of the same stage needs one.

Attempts may share a child if they need the same libraries and the same number of CPUs and belong to one stage, and if
none of them follows a failed attempt. Each child runs at most MOST_ATTEMPTS attempts, so that what a library leaks
cannot add up. The executor decides how long a child is kept; a dead one is noticed here.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

from datakit.engine.executor import Attempt
from datakit.engine.task import Preload
from datakit.engine.worker.handles.child_process import ChildProcess

MOST_ATTEMPTS = 64  # chosen, not measured: starting a child then takes less than 1 % of the time of tiny attempts


@dataclass(frozen=True)
class Kind:
    """What attempts that share a child have in common."""

    stage: str
    preloads: tuple[Preload, ...]
    cpus: int


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
        self._idle: list[tuple[Kind, ChildProcess]] = []  # the most recently used is last

    def __len__(self) -> int:
        """Return the number of idle children."""
        return len(self._idle)

    def retained(self) -> int:
        """Return the bytes of memory that the idle children hold."""
        with self._lock:
            return sum(child.retained for _, child in self._idle)

    def put(self, attempt: Attempt, child: ChildProcess) -> None:
        """Keep a child that has run this attempt."""
        kind = kind_of(attempt)
        assert kind is not None
        with self._lock:
            self._idle.append((kind, child))

    def take(self, attempt: Attempt) -> ChildProcess | None:
        """Remove and return a child in which the attempt may run; None if there is none."""
        kind = kind_of(attempt)
        with self._lock:
            for index in reversed(range(len(self._idle))):
                if self._idle[index][0] == kind:
                    return self._idle.pop(index)[1]
        return None

    def surplus(self, needed: Collection[Kind | None], most: int, most_bytes: int) -> list[ChildProcess]:
        """Remove and return the children that no kind of waiting attempt needs, and then the least recently used ones
        until at most `most` are left, which hold at most `most_bytes`. The caller ends them.
        """
        with self._lock:
            surplus = [child for kind, child in self._idle if kind not in needed]
            self._idle = [pair for pair in self._idle if pair[0] in needed]
            while self._idle and (
                len(self._idle) > most or sum(child.retained for _, child in self._idle) > most_bytes
            ):
                surplus.append(self._idle.pop(0)[1])
            return surplus

    def end(self) -> None:
        """End all idle children."""
        for child in self.surplus((), 0, 0):
            child.end()
