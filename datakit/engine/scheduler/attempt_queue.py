"""Orders the attempts of a phase.

Retries that need no wait go first, so that a typo shows early. Then come new tasks, biggest input first, then retries
that had to wait. Exclusive attempts come last, so that no other attempt has to wait for them. A new task takes one
pointer in the queue, or 1 MB for 100,000 tasks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from datakit.engine.executor import Attempt
from datakit.engine.task import Task

SHARED, EXCLUSIVE = 0, 1  # ranks


class _Retry(NamedTuple):
    """A retry, with fields in heap order. ready: the monotonic time from which it may start; 0 means at once."""

    rank: int
    ready: float
    number: int
    attempt: Attempt


class AttemptQueue:
    """Holds the new tasks and retries that wait for a slot."""

    def __init__(self, tasks: Sequence[Task] = ()) -> None:
        """`tasks` are new; among tasks with equal input sizes, the first goes first."""
        self._new = sorted(tasks, key=lambda task: task.input_bytes, reverse=True)
        self._new.reverse()  # the next task is at the end, where pop() is cheap
        self._retries: list[_Retry] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._retries)

    def put_back(self, attempt: Attempt, ready: float = 0.0) -> None:
        """Queue a retry that may start at once, or not before the monotonic time `ready`."""
        self._number += 1
        rank = EXCLUSIVE if attempt.exclusive else SHARED
        heapq.heappush(self._retries, _Retry(rank, ready, self._number, attempt))

    def take(self, now: float) -> Task | Attempt | None:
        """Remove and return the next task or retry, or None if nothing is ready."""
        urgent = self._retries and self._retries[0][:2] == (SHARED, 0.0)
        if self._new and not urgent:
            return self._new.pop()
        return heapq.heappop(self._retries).attempt if self._retries and self._retries[0].ready <= now else None

    def take_new(self, count: int) -> tuple[Task, ...]:
        """Remove and return up to `count` new tasks."""
        return tuple(self._new.pop() for _ in range(min(count, len(self._new))))

    def ready_in(self, now: float) -> float:
        """Return the seconds until something is ready. The queue must not be empty."""
        return 0.0 if self._new else max(0.0, self._retries[0].ready - now)
