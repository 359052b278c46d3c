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


def in_background(items: Iterator[T], ahead: int) -> Generator[T, None, None]:
    """Yield the same items, up to `ahead` of them made in advance.

    Raises what the iterator raises. Closing the generator stops the thread.
    """
    ready: queue.Queue[_Item[T] | _End | BaseException] = queue.Queue(ahead)
    closed = threading.Event()

    def put(entry: _Item[T] | _End | BaseException) -> None:
        while not closed.is_set():
            try:
                ready.put(entry, timeout=POLL_SECONDS)
                return
            except queue.Full:
                continue

    def make() -> None:
        try:
            for item in items:
                put(_Item(item))
                if closed.is_set():
                    return
            put(_End())
        except BaseException as error:  # noqa: BLE001 - raised again in the consumer
            put(error)

    worker = threading.Thread(target=make, name="datakit-loader-batches", daemon=True)
    worker.start()
    try:
        while not isinstance(entry := ready.get(), _End):
            if isinstance(entry, BaseException):
                raise entry
            yield entry.value
    finally:
        closed.set()
        worker.join()
