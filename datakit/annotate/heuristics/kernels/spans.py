"""Numbers equal spans of a text: words, lines or paragraphs.

Spans are equal if their bytes are equal. A hash table finds candidates by their 64-bit hashes, so collisions cost time
but change nothing. Each span costs one probe of the table, and one comparison if it occurred before.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import njit

from datakit.text import hash_mixing
from datakit.text.hash_mixing import GOLDEN
from datakit.text.numba_cache import Decorator, cached_njit

EMPTY = -1

kernel: Decorator = cached_njit(hash_mixing)
mix: Callable[[np.uint64], np.uint64] = njit(cache=True, nogil=True, inline="always")(hash_mixing.mix)


class Numbers(NamedTuple):
    """The numbers of N spans. ids: int32 [N], equal for equal spans, ascending from 0 by first occurrence. firsts: the
    first span of each id, int32. totals: the number of spans of each id, int32. slots: a hash table, int32; at least
    `slots_for(N)` long.
    """

    ids: np.ndarray
    firsts: np.ndarray
    totals: np.ndarray
    slots: np.ndarray


@kernel
def slots_for(count: int) -> int:
    """Return the size of a hash table for `count` keys: a power of two, at most half full."""
    size = 16
    while size < 2 * count:
        size *= 2
    return size


@kernel
def hash_span(data: np.ndarray, start: int, stop: int) -> np.uint64:
    """Return a hash of some bytes."""
    hashed = np.uint64(stop - start)
    for position in range(start, stop):
        hashed = (hashed ^ np.uint64(data[position])) * GOLDEN
    return hashed


@kernel
def same_bytes(data: np.ndarray, first: int, second: int, length: int) -> bool:
    """Return True if `length` bytes at two places are equal."""
    for i in range(length):  # noqa: SIM110 - faster than a generator, also to compile
        if data[first + i] != data[second + i]:
            return False
    return True


@kernel
def number_spans(
    data: np.ndarray, starts: np.ndarray, stops: np.ndarray, hashes: np.ndarray, count: int, numbers: Numbers
) -> int:
    """Number `count` spans, and return the number of different ones."""
    size, distinct = slots_for(count), 0
    slots = numbers.slots
    slots[:size] = EMPTY
    for span in range(count):
        start, length = starts[span], stops[span] - starts[span]
        slot = np.int64(mix(hashes[span]) & np.uint64(size - 1))
        while True:
            found = slots[slot]
            if found == EMPTY:
                slots[slot], numbers.firsts[distinct], numbers.totals[distinct] = distinct, span, 0
                found = distinct
                distinct += 1
                break
            first = numbers.firsts[found]
            if (
                hashes[first] == hashes[span]
                and stops[first] - starts[first] == length
                and same_bytes(data, starts[first], start, length)
            ):
                break
            slot = (slot + 1) & (size - 1)
        numbers.ids[span] = found
        numbers.totals[found] += 1
    return distinct
