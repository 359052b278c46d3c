"""The order in which the attempts of a phase go out.

What must be tried again at once comes first (a typo shows early), then the tasks that were never tried, the biggest
input first, then what has to wait before it is tried again; attempts that must run alone come when nothing else is
left, so nobody waits for them. A task that was never tried costs the queue one pointer: 100,000 of them are 1 MB.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from datakit.engine.executor import Attempt
from datakit.engine.task import Task

AT_ONCE, LAST = 0, 1  # ranks


class _Retry(NamedTuple):
    """A place among the retries. ready: 0 at once, or when, on the monotonic clock."""

    rank: int
    ready: float
    number: int
    attempt: Attempt


class Queue:
    """Tasks and attempts that wait for a slot."""

    def __init__(self, tasks: Sequence[Task] = ()) -> None:
        """Tasks that were never tried; among equal inputs the first one goes first."""
        self._fresh = sorted(tasks, key=lambda task: task.input_bytes, reverse=True)
        self._fresh.reverse()  # the next one is the last
        self._retries: list[_Retry] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._fresh) + len(self._retries)

    def put_back(self, attempt: Attempt, ready: float = 0.0) -> None:
        """To be tried again, at once or from that time on."""
        self._number += 1
        rank = LAST if attempt.alone else AT_ONCE
        heapq.heappush(self._retries, _Retry(rank, ready, self._number, attempt))

    def take(self, now: float) -> Task | Attempt | None:
        """The next one, or None if nothing is ready."""
        urgent = self._retries and self._retries[0][:2] == (AT_ONCE, 0.0)
        if self._fresh and not urgent:
            return self._fresh.pop()
        return heapq.heappop(self._retries).attempt if self._retries and self._retries[0].ready <= now else None

    def take_fresh(self, count: int) -> tuple[Task, ...]:
        """Up to so many more that were never tried."""
        return tuple(self._fresh.pop() for _ in range(min(count, len(self._fresh))))

    def ready_in(self, now: float) -> float:
        """Seconds until something is ready. The queue must not be empty."""
        return 0.0 if self._fresh else max(0.0, self._retries[0].ready - now)
