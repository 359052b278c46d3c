"""Runs any iterator a given number of items ahead, in one background thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
_END = object()


def in_background(items: Iterator[T], ahead: int) -> Generator[T, None, None]:
    """Yield the items of an iterator, and produce up to `ahead` of them in advance, in a background thread. Errors that
    the iterator raises are passed on. Closing the generator stops this thread.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="datakit-loader-batches")
    waiting: deque[Future[Any]] = deque(thread.submit(next, items, _END) for _ in range(ahead))
    try:
        while (item := waiting.popleft().result()) is not _END:
            waiting.append(thread.submit(next, items, _END))
            yield item
    finally:
        thread.shutdown(cancel_futures=True)
