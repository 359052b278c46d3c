"""Cuts the documents of a component, in survivor order, into blocks of about equal size, which a sample determines.

The survivor keys of a document are encoded as words (uint64), whose order is that of the keys. A component's sample
consists of the documents whose mixed ids are below a limit, so it does not depend on how the documents are divided
among tasks. The blocks of any sample, even an empty one, are exact cuts of the order; the sample decides only how equal
they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datakit.dedup.survivors import survivor_keys
from datakit.text.hash_mixing import mix

SAMPLES = 4096  # documents in the sample of a component, about
_SIGN = np.uint64(1 << 63)


def survivor_words(prefer: Sequence[str], columns: dict[str, np.ndarray]) -> np.ndarray:
    """Return the survivor keys without the component: uint64 [keys, N]. columns: as for `survivor_keys`.

    >>> columns = {"component": np.zeros(3), "score:x": np.array([0.5, -np.inf, 2.0])}
    >>> columns |= {"high": np.arange(3, dtype=np.uint64), "low": np.arange(3, dtype=np.uint64)}
    >>> np.argsort(survivor_words(["score:x"], columns)[0]).tolist()
    [2, 0, 1]
    """
    return np.stack([_word(key) for key in survivor_keys(prefer, columns)[1:]])


def _word(key: np.ndarray) -> np.ndarray:
    if key.dtype == np.uint64:
        return key
    if key.dtype == np.int64:
        return key.view(np.uint64) ^ _SIGN
    bits = (key + 0.0).view(np.uint64)  # the sum turns -0.0 into 0.0, which is equal to it
    return np.where(bits & _SIGN, ~bits, bits ^ _SIGN)


def sampled(high: np.ndarray, low: np.ndarray, documents: int) -> np.ndarray:
    """Return which documents of a component belong to its sample: bool [N]. documents: about how many it has."""
    limit = min(2**64 - 1, 2**64 * SAMPLES // max(1, documents))
    return mix(high ^ mix(low)) <= np.uint64(limit)


def splitters(sample: Sequence[Sequence[int]], blocks: int) -> list[list[int]]:
    """Return the words at which each of `blocks` blocks after the first one begins; fewer if the sample is too small.

    >>> splitters([[4], [1], [3], [2]], 2)
    [[3]]
    >>> splitters([[4]], 3), splitters([], 3)
    ([[4]], [])
    """
    ordered = sorted(list(words) for words in sample)
    places = sorted({len(ordered) * number // blocks for number in range(1, blocks)})
    return [ordered[place] for place in places if place < len(ordered)]


def blocks_of(words: np.ndarray, starts: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the block of each document: int64 [N]. words: uint64 [keys, N]. starts: the result of `splitters`.

    >>> blocks_of(np.array([[1, 2, 2, 3], [9, 5, 6, 0]], np.uint64), [[2, 6], [3, 0]]).tolist()
    [0, 0, 1, 2]
    """
    found = np.zeros(words.shape[1], np.int64)
    for start in starts:
        reached = np.ones(words.shape[1], bool)
        for key, first in zip(words[::-1], np.array(start, np.uint64)[::-1], strict=True):
            reached = (key > first) | ((key == first) & reached)
        found += reached
    return found
