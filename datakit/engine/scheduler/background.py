"""Runs functions that may block on a disk or a store in threads, and returns their results to the run loop.

The run loop must not wait for a listing, a manifest or the plan of a large phase while slots are free. The loop itself
processes the results, so nothing that it owns needs a lock. The threads are daemon threads, so a hanging disk cannot
keep the process of a stopped run alive.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

MOST_THREADS = 8  # the functions mostly wait; more threads would compete with the loop for the GIL


R = TypeVar("R")


@dataclass(frozen=True)
class Finished(Generic[R]):
    """The outcome of a function: its key, and its result or the exception that it raised."""

    key: str
    result: R | None = None
    error: BaseException | None = None


class Work(Protocol[R]):
    """Functions that have been started, each identified by a key. `Background` explains the methods."""

    @property
    def busy(self) -> int: ...

    def start(self, key: str, function: Callable[[], R]) -> None: ...

    def take(self, timeout: float) -> list[Finished[R]]: ...

    def stop(self, seconds: float) -> list[Finished[R]]: ...


class Inline(Generic[R]):
    """Runs each function immediately, in the caller's thread. Simulations use it, because in a simulation planning
    takes no time.
    """

    def __init__(self) -> None:
        self._ended: list[Finished[R]] = []

    @property
    def busy(self) -> int:
        """The number of functions whose results have not been taken."""
        return len(self._ended)

    def start(self, key: str, function: Callable[[], R]) -> None:
        """Run a function."""
        self._ended.append(_ended(key, function))

    def take(self, timeout: float) -> list[Finished[R]]:
        """Return all outcomes since the last call."""
        found, self._ended = self._ended, []
        return found

    def stop(self, seconds: float) -> list[Finished[R]]:
        """Return all outcomes since the last call; no function is running."""
        return self.take(seconds)


class Background(Generic[R]):
    """Runs functions in threads. Each function is identified by a key."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, Callable[[], R]]] = deque()
        self._ended: queue.SimpleQueue[Finished[R]] = queue.SimpleQueue()
        self._threads: dict[int, threading.Thread] = {}  # keyed by the number of the function
        self._started = self._taken = 0

    @property
    def busy(self) -> int:
        """The number of functions whose results have not been taken."""
        return self._started + len(self._waiting) - self._taken

    def start(self, key: str, function: Callable[[], R]) -> None:
        """Run a function as soon as a thread is free."""
        self._waiting.append((key, function))
        self._fill()

    def take(self, timeout: float) -> list[Finished[R]]:
        """Return all outcomes since the last call; if there is none yet, wait up to `timeout` seconds for one."""
        found: list[Finished[R]] = []
        try:
            found.append(self._ended.get(timeout=timeout) if timeout > 0 else self._ended.get_nowait())
            while True:
                found.append(self._ended.get_nowait())
        except queue.Empty:
            self._taken += len(found)
            self._fill()
            return found

    def stop(self, seconds: float) -> list[Finished[R]]:
        """Start no further function, wait up to `seconds` for the running ones, and return the outcomes."""
        self._waiting.clear()
        found, until = self.take(0), time.monotonic() + seconds
        while self.busy and (left := until - time.monotonic()) > 0:
            found += self.take(left)
        return found

    def _fill(self) -> None:
        while self._waiting and self._started - self._taken < MOST_THREADS:
            key, function = self._waiting.popleft()
            self._started += 1
            threading.Thread(target=self._run, args=(key, function), name="datakit-background", daemon=True).start()

    def _run(self, key: str, function: Callable[[], R]) -> None:
        self._ended.put(_ended(key, function))


def _ended(key: str, function: Callable[[], R]) -> Finished[R]:
    try:
        return Finished(key, function())
    except BaseException as error:  # noqa: BLE001 - raised again in the loop
        return Finished(key, error=error)
