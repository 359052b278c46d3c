"""Finds the n-grams of an index in documents. Clean text costs a key and the test of a bit for each word, and twice as
much if the index has short passages. Texts are processed in blocks of words that fit in the L1 cache.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.annotate.contamination import index, ngram_hashes
from datakit.annotate.contamination.index import Index
from datakit.annotate.contamination.ngram_hashes import consecutive_keys, ngram_check, ngram_key
from datakit.text import growing_rows, hash_mixing, key_tables, shingle_kernels, unicode_words
from datakit.text.growing_rows import with_room
from datakit.text.key_tables import first_row, leading_bits, possible
from datakit.text.numba_cache import Decorator, cached_njit
from datakit.text.shingle_kernels import BLOCK, hash_words, mix

FIRST_CAPACITY = 1024
_ZERO, _ONE = np.uint64(0), np.uint64(1)

kernel: Decorator = cached_njit(
    index, ngram_hashes, growing_rows, key_tables, hash_mixing, shingle_kernels, unicode_words
)


class Block(NamedTuple):
    """Buffers for one block, of BLOCK + ngram + 2 entries each: the words' hashes, the mixed hashes, the keys (uint64),
    and the positions of the keys that pass the bitmap (int64).
    """

    words: np.ndarray
    mixed: np.ndarray
    keys: np.ndarray
    chosen: np.ndarray


@kernel
def new_block(ngram: int) -> Block:
    """Allocate the buffers."""
    size = BLOCK + ngram + 2
    return Block(
        np.empty(size, np.uint64), np.empty(size, np.uint64), np.empty(size, np.uint64), np.empty(size, np.int64)
    )


@kernel
def row_of(index: Index, shift: np.uint64, mixed: np.ndarray, start: int, length: int, key: np.uint64) -> int:
    """Return the row of an n-gram in the index, or -1. shift: `leading_bits` of the directory of `index.ngrams`."""
    row = first_row(index.ngrams, shift, key)
    if row < 0:
        return -1
    check, keys = ngram_check(mixed, start, length), index.ngrams.keys
    while row < len(keys) and keys[row] == key:
        if index.checks[row] == check:
            return row
        row += 1
    return -1


@kernel
def _find_ngrams(
    index: Index, block: Block, ready: int, ngram: int, document: int, base: int, matches: np.ndarray, found: int
) -> tuple[np.ndarray, int]:
    """Append the n-grams that start at the first `ready` words of the block. base: the number of its first word."""
    directory = leading_bits(len(index.ngrams.directory) - 1)
    consecutive_keys(block.mixed, ready, ngram, block.keys)
    bits = leading_bits(64 * len(index.ngrams.bitmap))
    for c in range(possible(block.keys, ready, index.ngrams.bitmap, bits, block.chosen)):
        i = block.chosen[c]
        row = row_of(index, directory, block.mixed, i, ngram, block.keys[i])
        if row >= 0:
            matches = with_room(matches, found)
            matches[found, 0], matches[found, 1], matches[found, 2], matches[found, 3] = document, base + i, ngram, row
            found += 1
    return matches, found


@kernel
def _find_short(
    index: Index,
    block: Block,
    starts: int,
    count: int,
    min_words: int,
    document: int,
    base: int,
    matches: np.ndarray,
    found: int,
) -> tuple[np.ndarray, int]:
    """Append the short passages that start at the first `starts` words of a block of `count` words."""
    directory = leading_bits(len(index.ngrams.directory) - 1)
    anchor_directory = leading_bits(len(index.anchors.directory) - 1)
    consecutive_keys(block.mixed, starts, min_words, block.keys)
    bits = leading_bits(64 * len(index.anchors.bitmap))
    for c in range(possible(block.keys, starts, index.anchors.bitmap, bits, block.chosen)):
        i = block.chosen[c]
        anchor = first_row(index.anchors, anchor_directory, block.keys[i])
        lengths, length = index.anchor_lengths[anchor] if anchor >= 0 else _ZERO, 0
        while lengths != _ZERO:
            if lengths & _ONE and i + length <= count:
                row = row_of(index, directory, block.mixed, i, length, ngram_key(block.mixed, i, length))
                if row >= 0:
                    matches = with_room(matches, found)
                    matches[found, 0], matches[found, 1], matches[found, 2] = document, base + i, length
                    matches[found, 3] = row
                    found += 1
            lengths, length = lengths >> _ONE, length + 1
    return matches, found


@kernel
def search(
    data: np.ndarray, offsets: np.ndarray, table: np.ndarray, ngram: int, min_words: int, index: Index
) -> np.ndarray:
    """Return the matches of all documents, int64 [matches, 4], ascending by document only: the document, the number of
    the first word, the number of words, and the row in the index.
    """
    block, matches, found = new_block(ngram), np.empty((FIRST_CAPACITY, 4), np.int64), 0
    short = len(index.anchors.keys) > 0
    for document in range(len(offsets) - 1):
        position, stop, count, open_word, base = offsets[document], offsets[document + 1], 0, _ZERO, 0
        while position < stop:
            position, count, open_word = hash_words(data, position, stop, table, block.words, count, open_word)
            last = position >= stop
            if last and open_word != _ZERO:
                block.words[count] = open_word
                count += 1
            for i in range(count):
                block.mixed[i] = mix(block.words[i])
            ready = max(count - ngram + 1, 0)
            if ready:
                matches, found = _find_ngrams(index, block, ready, ngram, document, base, matches, found)
            starts = max(count - min_words + 1, 0) if last else ready
            if short and starts:
                matches, found = _find_short(index, block, starts, count, min_words, document, base, matches, found)
            for i in range(count - ready):
                block.words[i] = block.words[ready + i]
            base, count = base + ready, count - ready
    return matches[:found]
