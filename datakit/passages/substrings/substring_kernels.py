"""Implements the compiled loops that hash the substrings of texts one by one, and that copy parts of texts.

The hash of a substring follows from that of the substring one byte to its left. Cost: about 4 ns per byte.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.passages.substrings import anchor_kernels, polynomial
from datakit.passages.substrings.anchor_kernels import Settings, edges_of
from datakit.passages.substrings.polynomial import difference, reduced, times
from datakit.text import hash_mixing
from datakit.text.hash_mixing import mix
from datakit.text.numba_cache import Decorator, cached_njit

kernel: Decorator = cached_njit(anchor_kernels, polynomial, hash_mixing)
_mix = kernel(mix)


class Substrings(NamedTuple):
    """Hashed substrings. texts: the index of each one's text. places: its position there. high, low: its hash. edges:
    as in `anchor_kernels.py`.
    """

    texts: np.ndarray
    places: np.ndarray
    high: np.ndarray
    low: np.ndarray
    edges: np.ndarray


@kernel
def hash_substrings(data: np.ndarray, offsets: np.ndarray, settings: Settings, found: Substrings) -> int:
    """Hash all substrings of texts, and return their number."""
    count, size = 0, settings.size
    one, two = settings.first[1], settings.second[1]
    for text in range(len(offsets) - 1):
        first, second, begin = np.uint64(0), np.uint64(0), offsets[text]
        for i in range(begin, offsets[text + 1]):
            value = np.uint64(data[i]) + np.uint64(1)
            first, second = times(first, one) + value, times(second, two) + value
            start = i + 1 - size
            if start < begin:
                continue
            if start > begin:
                gone = np.uint64(data[start - 1]) + np.uint64(1)
                first = difference(first, times(gone, settings.first[size]))
                second = difference(second, times(gone, settings.second[size]))
            found.texts[count], found.places[count] = text, start - begin
            found.high[count], found.low[count] = _mix(reduced(first) ^ settings.seed), reduced(second)
            found.edges[count] = edges_of(data, start, i + 1)
            count += 1
    return count


@kernel
def copy_parts(data: np.ndarray, starts: np.ndarray, offsets: np.ndarray, copied: np.ndarray) -> None:
    """Copy the bytes from `starts[i]` on to `copied[offsets[i]:offsets[i + 1]]`, for every i."""
    for i in range(len(starts)):
        copied[offsets[i] : offsets[i + 1]] = data[starts[i] : starts[i] + offsets[i + 1] - offsets[i]]
