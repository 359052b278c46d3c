"""Reads token ranges in background threads before the caller needs them, in a given order and at most `in_flight` at a
time. Reading the next block while the current one is in use hides the latency of the disk or the network. With four
blocks in flight, an object store that answers after 50 ms delivers its full bandwidth. Memory: the `in_flight` blocks
that are being read or waiting to be used, plus the block in use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

BLOCK_TOKENS = 1 << 20
IN_FLIGHT = 4
Range = tuple[int, int]


def block_ranges(tokens: int, block_tokens: int = BLOCK_TOKENS) -> list[Range]:
    """Return consecutive ranges of `block_tokens` tokens that cover `tokens` tokens; the last range may be shorter.

    >>> block_ranges(5, 2)
    [(0, 2), (2, 4), (4, 5)]
    """
    return [(start, min(start + block_tokens, tokens)) for start in range(0, tokens, block_tokens)]


def read_ahead(
    read: Callable[[int, int], np.ndarray], ranges: Iterable[Range], in_flight: int = IN_FLIGHT
) -> Iterator[np.ndarray]:
    """Yield the result of `read(start, stop)` for each range, in the given order, with up to `in_flight` reads at a
    time. A read's error is raised when the read's result is due. If the caller stops early, only the reads in flight
    are completed.
    """
    waiting: deque[Future[np.ndarray]] = deque()
    pool = ThreadPoolExecutor(in_flight, thread_name_prefix="datakit-read")
    try:
        for start, stop in ranges:
            waiting.append(pool.submit(read, start, stop))
            if len(waiting) == in_flight:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
