"""Reads ahead: the blocks of a cache, in any order, with a few reads in flight and a memory that does not grow.

Reading the next block while this one is used hides the disk or the network: with four blocks in flight, an object store
that answers after 50 ms gives as many tokens as its bandwidth allows. Memory: `in_flight` blocks that are being read or
wait to be used, and the one in use.
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
    """The blocks of so many tokens, in order; the last one may be shorter.

    >>> block_ranges(5, 2)
    [(0, 2), (2, 4), (4, 5)]
    """
    return [(start, min(start + block_tokens, tokens)) for start in range(0, tokens, block_tokens)]


def read_ahead(
    read: Callable[[int, int], np.ndarray], ranges: Iterable[Range], in_flight: int = IN_FLIGHT
) -> Iterator[np.ndarray]:
    """`read(start, stop)` of each range, in the order given, up to `in_flight` at a time.

    An error is raised in its turn. Whoever stops early waits for what is in flight, and nothing more is begun.
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
