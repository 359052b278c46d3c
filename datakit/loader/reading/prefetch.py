"""Runs an iterator ahead in a background thread, with a bounded queue."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
POLL_SECONDS = 0.1  # how often a producer with a full queue checks whether the consumer is gone


@dataclass(frozen=True)
class _Item(Generic[T]):
    value: T


class _End:
    """Marks the end of the items."""


class _Producer(Generic[T]):
    """Puts an iterator's items, its end or its error into a queue, in a thread, until it is closed."""

    def __init__(self, items: Iterator[T], ahead: int) -> None:
        self.ready: queue.Queue[_Item[T] | _End | BaseException] = queue.Queue(ahead)
        self._items, self._closed = items, threading.Event()
        self._thread = threading.Thread(target=self._run, name="datakit-loader-batches", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and wait for it."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for item in self._items:
                self._put(_Item(item))
                if self._closed.is_set():
                    return
            self._put(_End())
        except BaseException as error:  # noqa: BLE001 - raised again in the consumer
            self._put(error)

    def _put(self, entry: _Item[T] | _End | BaseException) -> None:
        while not self._closed.is_set():
            try:
                self.ready.put(entry, timeout=POLL_SECONDS)
                return
            except queue.Full:
                continue


def in_background(items: Iterator[T], ahead: int) -> Generator[T, None, None]:
    """Yield the same items, up to `ahead` of them made in advance.

    Raises what the iterator raises. Closing the generator stops the thread.
    """
    producer = _Producer(items, ahead)
    try:
        while not isinstance(entry := producer.ready.get(), _End):
            if isinstance(entry, BaseException):
                raise entry
            yield entry.value
    finally:
        producer.close()
