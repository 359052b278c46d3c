"""Implements the numba kernels of MinHash: minima under permutations, band keys, and the tests that mark documents as
too short or saturated. With 112 permutations, the kernels process 300 to 500 MB of text per CPU-second; this includes
the search for words.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba import njit

from datakit.text import hash_mixing, shingle_kernels, unicode_words
from datakit.text.numba_cache import Decorator, cached_njit
from datakit.text.shingle_kernels import mix, new_scratch, next_block

ELIGIBLE, TOO_SHORT, SATURATED = 0, 1, 2
TINY = np.uint32(256)  # most minima are below this only in documents with over ten million distinct shingles
STRIDE = 8  # shingles whose values are computed at a time
SATURATED_SHARE = 7 / 8  # a document is saturated if at least this share of its minima is below TINY
_ZERO, _ONE, _HALF = np.uint64(0), np.uint64(1), np.uint64(32)
_TOP = np.uint32(0xFFFFFFFF)

Four: TypeAlias = tuple[np.uint32, np.uint32, np.uint32, np.uint32]

kernel: Decorator = cached_njit(hash_mixing, shingle_kernels, unicode_words)


class Permutations(NamedTuple):
    """Permutations modulo 2**32, uint32 [count]: permutation i maps `value` to value * multipliers[i] + addends[i]."""

    multipliers: np.ndarray
    addends: np.ndarray


class Signatures(NamedTuple):
    """The signatures of N documents.

    windows: uint32 [N], the number of shingles in each document, including repeats. reason: uint8 [N], ELIGIBLE or the
    code of the reason why the document is skipped. keys: uint64 [bands, N], the band keys; 0 for skipped documents.
    """

    windows: np.ndarray
    reason: np.ndarray
    keys: np.ndarray


@njit(cache=True, nogil=True, inline="always")
def _smallest(values: Four, multiplier: np.uint32, addend: np.uint32) -> Any:
    """Return the smallest of four values under a permutation."""
    a, b, c, d = values
    first, second = np.uint32(a * multiplier + addend), np.uint32(b * multiplier + addend)
    third, fourth = np.uint32(c * multiplier + addend), np.uint32(d * multiplier + addend)
    return min(first, second, third, fourth)


@kernel
def _minimize(
    shingles: np.ndarray, count: int, short: np.ndarray, permutations: Permutations, minima: np.ndarray
) -> None:
    """Update `minima` with the first `count` shingles. short: uint32 [at least `count` + STRIDE], scratch space for the
    shingles' upper 32 bits.

    The inner loop runs over the permutations, for STRIDE shingles at a time; the last shingle is repeated to fill the
    last stride. A loop over the shingles for each permutation takes twice as long for documents of 60 shingles, and as
    long for documents of 1,000 (measured).
    """
    multipliers, addends = permutations
    for i in range(count):
        short[i] = np.uint32(shingles[i] >> _HALF)
    short[count : count + STRIDE] = short[count - 1]
    for i in range(0, count, STRIDE):
        left = short[i], short[i + 1], short[i + 2], short[i + 3]
        right = short[i + 4], short[i + 5], short[i + 6], short[i + 7]
        for p in range(len(minima)):
            multiplier, addend = multipliers[p], addends[p]
            smallest = min(_smallest(left, multiplier, addend), _smallest(right, multiplier, addend))
            minima[p] = min(minima[p], smallest)


@kernel
def _count_distinct(shingles: np.ndarray, count: int, known: np.ndarray, distinct: int) -> int:
    """Add new shingles to `known` and return the number of distinct shingles so far; stop when `known` is full."""
    for i in range(count):
        if distinct == len(known):
            break
        new = True
        for j in range(distinct):
            new &= known[j] != shingles[i]
        if new:
            known[distinct] = shingles[i]
            distinct += 1
    return distinct


@kernel
def is_saturated(minima: np.ndarray) -> bool:
    """Return True if most minima are so small that unrelated documents would often agree in them by chance."""
    tiny = 0
    for value in minima:
        tiny += value < TINY
    return tiny >= SATURATED_SHARE * len(minima)


@kernel
def _band_keys(minima: np.ndarray, rows: int, keys: np.ndarray) -> None:
    """Set each band's key to a hash of the band's index and minima. The inner loop runs over the bands, because their
    keys are independent of each other.
    """
    for band in range(len(keys)):
        keys[band] = mix(np.uint64(band) + _ONE)
    for row in range(rows):
        for band in range(len(keys)):
            keys[band] = mix(keys[band] ^ np.uint64(minima[band * rows + row]))


@kernel
def sign(
    data: np.ndarray,
    offsets: np.ndarray,
    table: np.ndarray,
    ngram: int,
    rows: int,
    min_shingles: int,
    permutations: Permutations,
    signatures: Signatures,
) -> None:
    """Write the signatures of `len(offsets) - 1` documents to `signatures`, which must contain only zeros."""
    scratch, minima = new_scratch(ngram), np.empty(len(permutations.multipliers), np.uint32)
    short, known = np.empty(len(scratch.shingles) + STRIDE, np.uint32), np.empty(min_shingles, np.uint64)
    band_keys = np.empty(len(signatures.keys), np.uint64)
    for document in range(len(offsets) - 1):
        position, stop, count, open_word = offsets[document], offsets[document + 1], 0, _ZERO
        total, distinct = 0, 0
        minima[:] = _TOP
        while position < stop:
            position, count, open_word, ready = next_block(
                data, position, stop, table, ngram, count, open_word, scratch
            )
            total += ready
            distinct = _count_distinct(scratch.shingles, ready, known, distinct)
            _minimize(scratch.shingles, ready, short, permutations, minima)
        signatures.windows[document] = total
        if distinct < min_shingles:
            signatures.reason[document] = TOO_SHORT
        elif is_saturated(minima):
            signatures.reason[document] = SATURATED
        else:
            _band_keys(minima, rows, band_keys)
            signatures.keys[:, document] = band_keys
