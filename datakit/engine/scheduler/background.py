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

    def stop(self, seconds: float) -> frozenset[str]: ...


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

    def stop(self, seconds: float) -> frozenset[str]:
        """Return no key, as nothing runs between calls."""
        return frozenset()


class Background(Generic[R]):
    """Runs functions in threads. Each function is identified by a key."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, Callable[[], R]]] = deque()
        self._ended: queue.SimpleQueue[Finished[R]] = queue.SimpleQueue()
        self._threads: dict[str, threading.Thread] = {}  # of the functions whose results have not been taken, by key

    @property
    def busy(self) -> int:
        """The number of functions whose results have not been taken."""
        return len(self._threads) + len(self._waiting)

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
            for one in found:
                del self._threads[one.key]
            self._fill()
            return found

    def stop(self, seconds: float) -> frozenset[str]:
        """Start no further function, and wait up to `seconds` for those that are running. Return the keys of those that
        still run then; `take` returns the ends of the others.
        """
        self._waiting.clear()
        until = time.monotonic() + seconds
        for thread in self._threads.values():
            if thread.ident is not None:  # otherwise, a signal came before it started
                thread.join(max(0.0, until - time.monotonic()))
        return frozenset(key for key, thread in self._threads.items() if thread.is_alive())

    def _fill(self) -> None:
        while self._waiting and len(self._threads) < MOST_THREADS:
            key, function = self._waiting.popleft()
            thread = threading.Thread(target=self._run, args=(key, function), name="datakit-background", daemon=True)
            self._threads[key] = thread
            thread.start()

    def _run(self, key: str, function: Callable[[], R]) -> None:
        self._ended.put(_ended(key, function))


def _ended(key: str, function: Callable[[], R]) -> Finished[R]:
    try:
        return Finished(key, function())
    except BaseException as error:  # noqa: BLE001 - raised again in the loop
        return Finished(key, error=error)
