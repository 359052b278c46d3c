"""Computes the MinHash band keys of the documents in a column of text, with permutations derived from a seed.

No Python object is created per document. A document's signature consists of the smallest value of its shingles under
each of `bands x rows` permutations. A permutation maps `value`, the upper 32 bits of a shingle, to
`value * multiplier + addend` modulo 2**32, with an odd multiplier. On hashed values, these permutations are as good as
ideal ones: with 1,500 seeds and sets of 20 to 20,000 shingles, the measured bias and variance of the Jaccard estimate
agree with those of the binomial distribution. Two documents are candidates if all `rows` minima of at least one band
agree; at Jaccard similarity J, the probability of this is 1 - (1 - J**rows)**bands.

A band key is a 64-bit hash of the band's index and its minima. Among 10 billion documents with 14 bands each, about 500
pairs get equal keys by chance. Such a pair is compared exactly, like any other, and rejected.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datakit.dedup.minhash import kernels
from datakit.dedup.minhash.kernels import Permutations, Signatures
from datakit.text.hash_mixing import GOLDEN, mix
from datakit.text.string_buffers import string_buffers
from datakit.text.unicode_words import character_table

REASONS = (None, "too_short", "saturated", "quarantined")  # why a document is skipped; the index is the reason's code


def permutations(seed: int, count: int) -> Permutations:
    """Return permutations with odd multipliers, made from the upper halves of splitmix64's outputs for `seed`.

    >>> [int(part[0]) for part in permutations(42, 1)]
    [3184996903, 686809907]
    """
    steps = np.arange(1, 2 * count + 1, dtype=np.uint64) * GOLDEN
    upper = (mix(steps + np.uint64(seed & 0xFFFFFFFFFFFFFFFF)) >> np.uint64(32)).astype(np.uint32)
    return Permutations(upper[0::2] | np.uint32(1), upper[1::2].copy())


def sign(
    texts: pa.Array | pa.ChunkedArray, *, bands: int, rows: int, ngram: int, seed: int, min_shingles: int
) -> Signatures:
    """Return the signatures of a column of strings. The signature of a row depends only on that row's text."""
    data, offsets = string_buffers(texts)
    count = len(offsets) - 1
    signed = Signatures(np.zeros(count, np.uint32), np.zeros(count, np.uint8), np.zeros((bands, count), np.uint64))
    table = character_table()
    kernels.sign(data, offsets, table, ngram, rows, min_shingles, permutations(seed, bands * rows), signed)
    return signed


def warm() -> None:
    """Load the kernels from numba's cache, or compile them, so that no task has to do so."""
    texts = pa.array(["eins zwei drei vier fünf sechs 七 八"], pa.large_string())
    sign(texts, bands=2, rows=2, ngram=5, seed=42, min_shingles=5)
