"""Reads ranges of a cache ahead of their use, in any order, with bounded memory.

Reading the next block while the current one is used hides the latency of the disk or the network: with four blocks in
flight, an object store that answers after 50 ms delivers its full bandwidth. Memory: the `in_flight` blocks that are
being read or waiting to be used, plus the one in use.
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
    """Return the block ranges for a cache of this many tokens, in order; the last one may be shorter.

    >>> block_ranges(5, 2)
    [(0, 2), (2, 4), (4, 5)]
    """
    return [(start, min(start + block_tokens, tokens)) for start in range(0, tokens, block_tokens)]


def read_ahead(
    read: Callable[[int, int], np.ndarray], ranges: Iterable[Range], in_flight: int = IN_FLIGHT
) -> Iterator[np.ndarray]:
    """Yield `read(start, stop)` for each range, in the given order, reading up to `in_flight` ranges at a time.

    An error is raised when its range is due. A caller that stops early waits for reads in flight; no new reads start.
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
