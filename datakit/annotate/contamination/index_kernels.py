"""Extracts the n-grams of passages in compiled loops, at about 100 MB of text per CPU-second."""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.annotate.contamination import ngram_hashes
from datakit.annotate.contamination.ngram_hashes import consecutive_keys, ngram_check, ngram_key
from datakit.text import hash_mixing, shingle_kernels, unicode_words
from datakit.text.numba_cache import Decorator, cached_njit
from datakit.text.shingle_kernels import BLOCK, hash_words, mix

_ZERO = np.uint64(0)

kernel: Decorator = cached_njit(ngram_hashes, hash_mixing, shingle_kernels, unicode_words)


class Extracted(NamedTuple):
    """The n-grams of all passages, in their order, with repeats: keys uint64, checks uint32, items uint32; and for each
    short passage its anchor, uint64, and its number of words, uint64.
    """

    keys: np.ndarray
    checks: np.ndarray
    items: np.ndarray
    anchors: np.ndarray
    lengths: np.ndarray


@kernel
def mixed_words(
    data: np.ndarray, position: int, stop: int, table: np.ndarray, block: np.ndarray, mixed: np.ndarray
) -> int:
    """Write the mixed hashes of all words of `data[position:stop]` to `mixed`; return their number. block: scratch
    space for `BLOCK` + 2 words.
    """
    total, open_word = 0, _ZERO
    while position < stop:
        position, count, open_word = hash_words(data, position, stop, table, block, 0, open_word)
        if position >= stop and open_word != _ZERO:
            block[count] = open_word
            count += 1
        for i in range(count):
            mixed[total + i] = mix(block[i])
        total += count
    return total


@kernel
def extract(
    data: np.ndarray,
    offsets: np.ndarray,
    table: np.ndarray,
    ngram: int,
    min_words: int,
    items: np.ndarray,
    counts: np.ndarray,
    short: np.ndarray,
    longest: int,
) -> Extracted:
    """Return the n-grams of the passages. counts: the number of n-grams of each passage, which is 1 for those that are
    `short`. longest: the largest number of words of a passage.
    """
    total, shorts = counts.sum(), short.sum()
    keys, checks, owners = np.empty(total, np.uint64), np.empty(total, np.uint32), np.empty(total, np.uint32)
    anchors, lengths = np.empty(shorts, np.uint64), np.empty(shorts, np.uint64)
    block, mixed = np.empty(BLOCK + 2, np.uint64), np.empty(longest, np.uint64)
    row, anchor = 0, 0
    for passage in range(len(offsets) - 1):
        count = counts[passage]
        if not count:
            continue
        words = mixed_words(data, offsets[passage], offsets[passage + 1], table, block, mixed)
        length = words if short[passage] else ngram
        consecutive_keys(mixed, count, length, keys[row : row + count])
        for i in range(count):
            checks[row + i] = ngram_check(mixed, i, length)
            owners[row + i] = items[passage]
        row += count
        if short[passage]:
            anchors[anchor], lengths[anchor] = ngram_key(mixed, 0, min_words), np.uint64(words)
            anchor += 1
    return Extracted(keys, checks, owners, anchors, lengths)
