"""MinHash signatures and band keys, straight from Arrow's buffers.

A document's signature is, for each of `bands x rows` permutations of its shingles, the smallest one. A permutation is
`value * multiplier + addend` modulo 2**32 of the shingle's upper 32 bits (odd multiplier): on hashed values this is as
good as ideal permutations (bias and variance of the Jaccard estimate agree with the binomial's, measured over 1,500
seeds and sets of 20 to 20,000 shingles) and at 300 to 500 MB of text a CPU-second about as fast as finding the words.
Two documents are candidates if all `rows` minima of some band agree: P = 1 - (1 - J**rows)**bands.

A band key is a 64-bit hash of the band's number and its minima. Among 10 billion documents some forty pairs of keys
agree by accident; such a pair is verified like any other, and refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datakit.text import shingle_kernels
from datakit.text.hash_mixing import GOLDEN, mix
from datakit.text.string_buffers import string_buffers
from datakit.text.unicode_words import character_table

REASONS = (None, "too_short", "saturated", "quarantined")  # why a document takes no part, by the kernel's code, or ours


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
    steps = np.arange(1, 2 * count + 1, dtype=np.uint64) * GOLDEN
    halves = (mix(steps + np.uint64(seed & 0xFFFFFFFFFFFFFFFF)) >> np.uint64(32)).astype(np.uint32)
    return halves[0::2] | np.uint32(1), halves[1::2].copy()


def sign(
    texts: pa.Array | pa.ChunkedArray, *, bands: int, rows: int, ngram: int, seed: int, min_shingles: int
) -> Signatures:
    """The signatures of a column of strings. The same text gives the same signature, whatever stands beside it."""
    data, offsets = string_buffers(texts)
    multipliers, addends = permutations(seed, bands * rows)
    count = len(offsets) - 1
    windows, reason, keys = np.zeros(count, np.uint32), np.zeros(count, np.uint8), np.zeros((bands, count), np.uint64)
    shingle_kernels.sign(
        data, offsets, character_table(), ngram, rows, min_shingles, multipliers, addends, windows, reason, keys
    )  # fmt: skip
    return Signatures(windows, reason, keys)


def warm() -> None:
    """Compile or load the kernels, so that no task does."""
    texts = pa.array(["eins zwei drei vier fünf sechs 七 八"], pa.large_string())
    sign(texts, bands=2, rows=2, ngram=5, seed=42, min_shingles=5)
