"""Numbers equal spans of a text: words, lines or paragraphs.

Spans are equal if their bytes are equal. Each has a key of 64 bits. The key of at most seven bytes is these bytes and
their number, so equal keys are equal spans. Longer spans have a hash for a key, and are compared byte by byte, so
collisions cost time but change nothing. Each span costs about one probe of a hash table.

Eight bytes are read at once, in `windows`: a view of the text with one element per byte.
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
WINDOW = 8  # bytes
HASHED = np.uint64(0xFF << 56)  # the least key of a span with more than seven bytes

kernel: Decorator = cached_njit(hash_mixing)
mix: Callable[[np.uint64], np.uint64] = njit(cache=True, nogil=True, inline="always")(hash_mixing.mix)


class Numbers(NamedTuple):
    """The numbers of N spans. ids: int32 [N], equal for equal spans, ascending from 0 by first occurrence. firsts: the
    first span of each id, int32. totals: the number of spans of each id, int32. slots, keys: a hash table, with ids
    (int32) and their keys (uint64); at least `slots_for(N)` long.
    """

    ids: np.ndarray
    firsts: np.ndarray
    totals: np.ndarray
    slots: np.ndarray
    keys: np.ndarray


def windows_of(data: np.ndarray) -> np.ndarray:
    """Return a view of N bytes, uint64 [N - 7], whose elements are the eight bytes that start at each byte."""
    return np.ndarray((max(len(data) - WINDOW + 1, 0),), np.uint64, data if len(data) >= WINDOW else b"", strides=(1,))


@kernel
def slots_for(count: int) -> int:
    """Return the size of a hash table for `count` keys: a power of two, at most half full."""
    size = 16
    while size < 2 * count:
        size *= 2
    return size


@kernel
def _last_bytes(data: np.ndarray, windows: np.ndarray, start: int, stop: int) -> np.uint64:
    """Return up to seven bytes as a number."""
    if start < len(windows):
        return windows[start] & ((np.uint64(1) << np.uint64(8 * (stop - start))) - np.uint64(1))
    number = np.uint64(0)
    for i in range(stop - start):
        number |= np.uint64(data[start + i]) << np.uint64(8 * i)
    return number


@kernel
def short_key(window: np.uint64, length: int) -> np.uint64:
    """Return the key of up to seven bytes. window: these bytes, and others behind them."""
    mask = (np.uint64(1) << np.uint64(8 * length)) - np.uint64(1)
    return (window & mask) | (np.uint64(length) << np.uint64(56))


@kernel
def key_of(data: np.ndarray, windows: np.ndarray, start: int, stop: int) -> np.uint64:
    """Return the key of some bytes. windows: see `windows_of`."""
    if stop - start < WINDOW:
        return _last_bytes(data, windows, start, stop) | (np.uint64(stop - start) << np.uint64(56))
    hashed = np.uint64(stop - start)
    while stop - start >= WINDOW:
        hashed = (hashed ^ windows[start]) * GOLDEN
        hashed ^= hashed >> np.uint64(29)
        start += WINDOW
    return join_keys(hashed, _last_bytes(data, windows, start, stop))


@kernel
def join_keys(first: np.uint64, second: np.uint64) -> np.uint64:
    """Return the key of a span that consists of two, which is a hash."""
    hashed = (first ^ second) * GOLDEN
    return (hashed ^ (hashed >> np.uint64(29))) | HASHED


@kernel
def same_bytes(data: np.ndarray, first: int, second: int, length: int) -> bool:
    """Return True if `length` bytes at two places are equal."""
    for i in range(length):  # noqa: SIM110 - faster than a generator, also to compile
        if data[first + i] != data[second + i]:
            return False
    return True


@kernel
def number_spans(
    data: np.ndarray, starts: np.ndarray, stops: np.ndarray, keys: np.ndarray, count: int, numbers: Numbers
) -> tuple[int, int]:
    """Number `count` spans. Return the number of different ones, and of the slots that were looked at."""
    size, distinct, steps = slots_for(count), 0, 0
    slots, mask = numbers.slots, np.uint64(size - 1)
    slots[:size] = EMPTY
    for span in range(count):
        key = keys[span]
        slot = np.int64(mix(key) & mask)
        while True:
            steps += 1
            found = slots[slot]
            if found == EMPTY:
                slots[slot], numbers.keys[slot] = distinct, key
                numbers.firsts[distinct], numbers.totals[distinct] = span, 0
                found = distinct
                distinct += 1
                break
            if numbers.keys[slot] == key and (key < HASHED or _same(data, starts, stops, numbers.firsts[found], span)):
                break
            slot = (slot + 1) & (size - 1)
        numbers.ids[span] = found
        numbers.totals[found] += 1
    return distinct, steps


@kernel
def _same(data: np.ndarray, starts: np.ndarray, stops: np.ndarray, first: int, second: int) -> bool:
    """Return True if two spans have the same bytes."""
    length = stops[first] - starts[first]
    return length == stops[second] - starts[second] and same_bytes(data, starts[first], starts[second], length)
