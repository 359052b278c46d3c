"""Implements the features of datakit's own linear classifier, and its scores, as numba kernels.

The features of a document are its words and its pairs of adjacent words, hashed to 2**bits buckets. Words are those of
`text/unicode_words.py`: maximal runs of word characters in lower case, or single characters in scripts without spaces.
A feature's value is its share of all features of the document, in percent, so it does not depend on the length of the
document. The score is the logistic function of the bias plus the weighted sum of the features. It is summed in float64
and in the order of the text, so it is the same on every machine.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

import math

import numpy as np

from datakit.text import hash_mixing, shingle_kernels, unicode_words
from datakit.text.hash_mixing import GOLDEN
from datakit.text.numba_cache import Decorator, cached_njit
from datakit.text.shingle_kernels import hash_words, mix, new_scratch

PERCENT = 100.0
LEAST_BITS, MOST_BITS = 8, 26
_ZERO, _WORD_BITS = np.uint64(0), np.uint64(64)

kernel: Decorator = cached_njit(hash_mixing, shingle_kernels, unicode_words)


@kernel
def _add(words: np.ndarray, first: int, count: int, bits: int, weights: np.ndarray, found: np.ndarray, total: int,
         weight: float) -> tuple[int, float]:  # fmt: skip
    """Add the features of the words `words[first:count]`; each forms a pair with the word before it, if there is one.
    Returns the new number of features and the new sum of weights. The buckets are written to `found`, unless it is
    empty; the weights are added up, unless `weights` is empty.
    """
    shift = _WORD_BITS - np.uint64(bits)
    for i in range(first, count):
        for size in range(2 if i else 1):
            code = words[i] if size == 0 else mix(words[i - 1]) + words[i] * GOLDEN
            bucket = mix(code) >> shift
            if len(found):
                found[total] = bucket
            if len(weights):
                weight += weights[bucket]
            total += 1
    return total, weight


@kernel
def _read(data: np.ndarray, position: int, stop: int, table: np.ndarray, words: np.ndarray, bits: int,
          weights: np.ndarray, found: np.ndarray) -> tuple[int, float]:  # fmt: skip
    """Read a document; see `_add`. Return the number of its features and the sum of their weights."""
    total, weight, first, count, open_word = 0, 0.0, 0, 0, _ZERO
    while position < stop:
        position, count, open_word = hash_words(data, position, stop, table, words, count, open_word)
        if position >= stop and open_word != _ZERO:
            words[count] = open_word
            count += 1
        total, weight = _add(words, first, count, bits, weights, found, total, weight)
        if count:
            words[0] = words[count - 1]
            first, count = 1, 1
    return total, weight


@kernel
def count_features(data: np.ndarray, offsets: np.ndarray, table: np.ndarray, totals: np.ndarray) -> None:
    """Set `totals`, int64 [N], to the number of features of each document, with repetitions."""
    words = new_scratch(1).words
    for i in range(len(offsets) - 1):
        totals[i], _ = _read(
            data, offsets[i], offsets[i + 1], table, words, 1, np.empty(0, np.float32), np.empty(0, np.uint32)
        )


@kernel
def list_features(
    data: np.ndarray, offsets: np.ndarray, table: np.ndarray, bits: int, ends: np.ndarray, buckets: np.ndarray
) -> None:
    """Write the buckets of document i to `buckets[ends[i]:ends[i + 1]]`, uint32, in the order of the text."""
    words = new_scratch(1).words
    for i in range(len(offsets) - 1):
        if ends[i] < ends[i + 1]:
            found = buckets[ends[i] : ends[i + 1]]
            _read(data, offsets[i], offsets[i + 1], table, words, bits, np.empty(0, np.float32), found)


@kernel
def score(
    data: np.ndarray,
    offsets: np.ndarray,
    table: np.ndarray,
    bits: int,
    weights: np.ndarray,
    bias: float,
    scores: np.ndarray,
    known: np.ndarray,
) -> None:
    """Set `scores`, float32 [N], to the probability of each document, and `known`, bool [N], to whether it has words.

    weights: float32 [2**bits].
    """
    words = new_scratch(1).words
    for i in range(len(offsets) - 1):
        total, weight = _read(data, offsets[i], offsets[i + 1], table, words, bits, weights, np.empty(0, np.uint32))
        known[i] = total > 0
        value = bias + (weight * PERCENT / total if total else 0.0)
        scores[i] = np.float32(1.0 / (1.0 + math.exp(-min(max(value, -700.0), 700.0))))
