"""Orders a phase's attempts: immediate retries, new tasks (largest first), delayed retries, exclusive attempts.

Retries that may start immediately go first, so that a mistake that affects every task shows up early. Then come new
tasks, largest input first, and then the retries that had to wait. Exclusive attempts come last, so that no other
attempt has to wait for them. The queue holds only a pointer to each new task: about 1 MB for 100,000 tasks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from datakit.engine.executor import Attempt
from datakit.engine.task import Task


class _Retry(NamedTuple):
    """A waiting retry, with its fields in the order in which the heap compares them. `ready` is the earliest time,
    on the monotonic clock, at which the retry may start; 0 means immediately.
    """

    exclusive: bool
    ready: float
    number: int
    attempt: Attempt


class AttemptQueue:
    """Holds the new tasks and the retries that wait for a slot."""

    def __init__(self, tasks: Sequence[Task] = ()) -> None:
        """`tasks`: the new tasks. Tasks with equal input sizes start in the given order."""
        self._new = sorted(tasks, key=lambda task: task.input_bytes, reverse=True)
        self._new.reverse()  # the next task is at the end of the list, where pop() is cheap
        self._retries: list[_Retry] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._retries)

    def put_back(self, attempt: Attempt, ready: float = 0.0) -> None:
        """Queue a retry. It may start immediately or, if `ready` is given, at that time on the monotonic clock."""
        self._number += 1
        heapq.heappush(self._retries, _Retry(attempt.exclusive, ready, self._number, attempt))

    def take(self, now: float) -> Task | Attempt | None:
        """Remove and return the next task or retry, or None if nothing is ready."""
        urgent = self._retries and self._retries[0][:2] == (False, 0.0)
        if self._new and not urgent:
            return self._new.pop()
        return heapq.heappop(self._retries).attempt if self._retries and self._retries[0].ready <= now else None

    def take_new(self, count: int) -> tuple[Task, ...]:
        """Remove and return up to `count` new tasks."""
        return tuple(self._new.pop() for _ in range(min(count, len(self._new))))

    def ready_in(self, now: float) -> float:
        """Return the number of seconds until a task or a retry is ready. The queue must not be empty."""
        return 0.0 if self._new else max(0.0, self._retries[0].ready - now)
