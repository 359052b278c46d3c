"""MinHash signatures and band keys, straight from Arrow's buffers.

A document's signature is, for each of `bands x rows` permutations of its shingles, the smallest one. A permutation is
`value * multiplier + addend` modulo 2**32 of the shingle's upper 32 bits (odd multiplier): on hashed values this is as
good as ideal permutations (bias and variance of the Jaccard estimate agree with the binomial's, measured over 1,500
seeds and sets of 20 to 20,000 shingles) and at 300 to 500 MB of text a CPU-second about as fast as finding the words.
Two documents are candidates if all `rows` minima of some band agree: P = 1 - (1 - J**rows)**bands.

A band key is a 64-bit hash of the band's number and its minima. 10 million documents have 10**15 pairs a band, so about
a thousand keys agree by accident; such a pair is verified like any other, and refused.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numba import njit

from datakit.dedup.shingles import BLOCK, ONE, ZERO, mix, next_block, text_buffers
from datakit.dedup.words import character_table

ELIGIBLE, TOO_SHORT, SATURATED = 0, 1, 2
REASONS = (None, "too_short", "saturated")  # why a document takes no part, by code
TINY = np.uint32(256)  # minima below it say little: more than some ten million distinct shingles
SATURATED_SHARE = 7 / 8  # of the minima
_TOP = np.uint32(0xFFFFFFFF)
_HALF = np.uint64(32)


@dataclass(frozen=True)
class Signatures:
    """Of N documents: windows, uint32 [N], shingles with repeats; reason, uint8 [N]; keys, uint64 [bands, N].

    Keys of documents whose reason is not ELIGIBLE are 0.
    """

    windows: np.ndarray
    reason: np.ndarray
    keys: np.ndarray


def permutations(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(odd multipliers, addends), uint32 [count] each: the upper halves of splitmix64's outputs for `seed`, in turn.

    >>> [int(part[0]) for part in permutations(42, 1)]
    [3184996903, 686809907]
    """
    steps = np.arange(1, 2 * count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    values = steps + np.uint64(seed & 0xFFFFFFFFFFFFFFFF)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    halves = ((values ^ (values >> np.uint64(31))) >> np.uint64(32)).astype(np.uint32)
    return halves[0::2] | np.uint32(1), halves[1::2].copy()


@njit(cache=True, nogil=True)
def _minimize(
    shingles: np.ndarray,
    count: int,
    short: np.ndarray,
    multipliers: np.ndarray,
    addends: np.ndarray,
    minima: np.ndarray,
) -> None:
    """Lower `minima` by `count` more shingles; `short` is room for their upper halves."""
    for i in range(count):
        short[i] = np.uint32(shingles[i] >> _HALF)
    for p in range(len(minima)):
        smallest, multiplier, addend = minima[p], multipliers[p], addends[p]
        for i in range(count):
            smallest = min(smallest, np.uint32(short[i] * multiplier + addend))
        minima[p] = smallest


@njit(cache=True, nogil=True)
def _count_distinct(shingles: np.ndarray, count: int, known: np.ndarray, distinct: int) -> int:
    """How many distinct shingles there are, up to len(known), which keeps them; stops as soon as it is full."""
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


@njit(cache=True, nogil=True)
def is_saturated(minima: np.ndarray) -> bool:
    """Whether nearly all minima come from a range so tiny that unrelated documents agree by chance."""
    tiny = 0
    for value in minima:
        tiny += value < TINY
    return tiny >= SATURATED_SHARE * len(minima)


@njit(cache=True, nogil=True)
def _band_keys(minima: np.ndarray, rows: int, keys: np.ndarray) -> None:
    """Bands in the inner loop: their chains of multiplications do not wait for one another."""
    for band in range(len(keys)):
        keys[band] = mix(np.uint64(band) + ONE)
    for row in range(rows):
        for band in range(len(keys)):
            keys[band] = mix(keys[band] ^ np.uint64(minima[band * rows + row]))


@njit(cache=True, nogil=True)
def _sign(
    data: np.ndarray,
    offsets: np.ndarray,
    table: np.ndarray,
    ngram: int,
    rows: int,
    min_shingles: int,
    multipliers: np.ndarray,
    addends: np.ndarray,
    windows: np.ndarray,
    reason: np.ndarray,
    keys: np.ndarray,
) -> None:
    hashes, shingles = np.empty(BLOCK + ngram + 2, np.uint64), np.empty(BLOCK + ngram + 2, np.uint64)
    short, known = np.empty(BLOCK + ngram + 2, np.uint32), np.empty(min_shingles, np.uint64)
    minima, band_keys = np.empty(len(multipliers), np.uint32), np.empty(len(keys), np.uint64)
    for document in range(len(offsets) - 1):
        position, stop, count, open_word = offsets[document], offsets[document + 1], 0, ZERO
        total, distinct = 0, 0
        minima[:] = _TOP
        while position < stop:
            position, count, open_word, ready = next_block(
                data, position, stop, table, ngram, hashes, count, open_word, shingles
            )
            total += ready
            distinct = _count_distinct(shingles, ready, known, distinct)
            _minimize(shingles, ready, short, multipliers, addends, minima)
        windows[document] = total
        if distinct < min_shingles:
            reason[document] = TOO_SHORT
        elif is_saturated(minima):
            reason[document] = SATURATED
        else:
            _band_keys(minima, rows, band_keys)
            keys[:, document] = band_keys


def sign(
    texts: pa.Array | pa.ChunkedArray, bands: int, rows: int, ngram: int, seed: int, min_shingles: int
) -> Signatures:
    """The signatures of a column of strings. The same text gives the same signature, whatever stands beside it."""
    data, offsets = text_buffers(texts)
    multipliers, addends = permutations(seed, bands * rows)
    count = len(offsets) - 1
    windows, reason, keys = np.zeros(count, np.uint32), np.zeros(count, np.uint8), np.zeros((bands, count), np.uint64)
    _sign(
        data, offsets, character_table(), ngram, rows, min_shingles, multipliers, addends, windows, reason, keys
    )  # fmt: skip
    return Signatures(windows, reason, keys)


def warm() -> None:
    """Compile or load the kernels, so that no task does."""
    sign(pa.array(["eins zwei drei vier fünf sechs 七 八"], pa.large_string()), 2, 2, 5, 42, 5)
