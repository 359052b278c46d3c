"""Implements the compiled loops that find and hash the words of a text, and combine the hashes of `ngram` consecutive
words into shingles. A word's hash is a multiplicative hash of its characters in lowercase. A shingle's hash is a
linear combination, with odd coefficients, of its words' mixed hashes, and is itself mixed. Both kinds of hash have 64
bits. If each of 10 million documents of 200 shingles is compared with 64 others, the probability that two different
shingles are mistaken for one another in any of these comparisons is about 10^-6.

In ASCII text, word boundaries are computed arithmetically, without a branch that the processor could mispredict. The
positions are unsigned, because numba tests in each step whether a signed index counts from the end; with signed ones,
finding words took 1.5 times as long (measured). Words are processed in blocks that fit in the L1 cache, so memory use
does not grow with the document. Words are found and hashed at over 500 MB of text per CPU-second.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import njit

from datakit.text import hash_mixing, unicode_words
from datakit.text.hash_mixing import GOLDEN, MIX_1
from datakit.text.numba_cache import Decorator, cached_njit
from datakit.text.unicode_words import ALONE, CODE_POINTS, WORD, character_table

BLOCK = 2048  # words per block; their hashes take 16 kB, which fits in the L1 cache
_ZERO, _ONE, _BLOCK = np.uint64(0), np.uint64(1), np.uint64(BLOCK)
_WORD_BIT = np.uint64(24)
_ASCII_END = 128
_NOTHING = np.uint32(0)
# The factor by which each ASCII character multiplies a word's hash: GOLDEN for characters of words, else 0.
_FACTORS = np.where(character_table()[:_ASCII_END] > 0, GOLDEN, _ZERO)
assert _ONE << _WORD_BIT == WORD

kernel: Decorator = cached_njit(hash_mixing, unicode_words)
mix: Callable[[np.uint64], np.uint64] = njit(cache=True, nogil=True, inline="always")(hash_mixing.mix)


class Scratch(NamedTuple):
    """Buffers for one block: the mixed hashes of its words and the hashes of the shingles they form, uint64 each."""

    words: np.ndarray
    shingles: np.ndarray


@kernel
def decode(data: np.ndarray, position: int, stop: int) -> tuple[np.int64, int]:
    """Return the non-ASCII character at `position` (CODE_POINTS if it is truncated) and the position after it."""
    at = np.uint64(position)
    byte = data[at]
    length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2
    if position + length > stop:
        return np.int64(CODE_POINTS), stop
    character = np.uint32(byte) & np.uint32((1 << (7 - length)) - 1)
    for i in range(1, length):
        character = (character << np.uint32(6)) | np.uint32(data[at + np.uint64(i)] & 63)
    return np.int64(character), position + length


@kernel
def hash_words(
    data: np.ndarray, position: int, stop: int, table: np.ndarray, hashes: np.ndarray, count: int, open_word: np.uint64
) -> tuple[int, int, np.uint64]:
    """Hash words of `data[position:stop]` into `hashes[count:]` until the data ends or the count reaches BLOCK.

    open_word: the partial hash of a word that began earlier, or 0. Returns the new position, count and open word. The
    unmixed hash h of a word starts at 0 and becomes (h ^ entry) * GOLDEN with each character, where `entry` is the
    character's entry in `table`.
    """
    at, end, filled = np.uint64(position), np.uint64(stop), np.uint64(count)
    while at < end and filled < _BLOCK:
        byte = data[at]
        if byte < _ASCII_END:
            entry = np.uint64(table[byte])  # no ASCII character is ALONE, so the flag WORD decides
            hashes[filled] = open_word
            filled += np.uint64(open_word != _ZERO) & ~(entry >> _WORD_BIT)
            open_word = (open_word ^ entry) * np.uint64(_FACTORS[byte])
            at += _ONE
        else:
            character, after = decode(data, np.int64(at), stop)
            at = np.uint64(after)
            entry = table[np.uint64(character)] if character < CODE_POINTS else _NOTHING
            if entry & WORD:
                open_word = (open_word ^ np.uint64(entry)) * GOLDEN
                continue
            if open_word != _ZERO:
                hashes[filled] = open_word
                filled += _ONE
                open_word = _ZERO
            if entry & ALONE:
                hashes[filled] = np.uint64(entry) * GOLDEN
                filled += _ONE
    return np.int64(at), np.int64(filled), open_word  # pyright: ignore[reportReturnType] - numba's int


@kernel
def hash_shingles(mixed: np.ndarray, count: int, ngram: int, shingles: np.ndarray) -> None:
    """Write to `shingles[:count]` the hashes of the `ngram`-word shingles that start at words 0 to count - 1.

    mixed: the words' mixed hashes.
    """
    for i in range(count):
        shingles[i] = _ZERO
    coefficient = _ONE
    for j in range(ngram):
        coefficient *= MIX_1
        for i in range(count):
            shingles[i] += mixed[i + j] * coefficient
    for i in range(count):
        shingles[i] = mix(shingles[i])


@kernel
def new_scratch(ngram: int) -> Scratch:
    """Allocate the buffers that `next_block` needs."""
    return Scratch(np.empty(BLOCK + ngram + 2, np.uint64), np.empty(BLOCK + ngram + 2, np.uint64))


@kernel
def next_block(
    data: np.ndarray,
    position: int,
    stop: int,
    table: np.ndarray,
    ngram: int,
    count: int,
    open_word: np.uint64,
    scratch: Scratch,
) -> tuple[int, int, np.uint64, int]:
    """Write the next shingles of a document to `scratch.shingles`.
    In the first call for a document, `position` is its start, and `count` and `open_word` are 0. Returns (position,
    count, open_word) for the next call, followed by the number of shingles written.
    """
    hashes, first = scratch.words, count
    position, count, open_word = hash_words(data, position, stop, table, hashes, count, open_word)
    if position >= stop and open_word != _ZERO:
        hashes[count] = open_word
        count, open_word = count + 1, _ZERO
    for i in range(first, count):
        hashes[i] = mix(hashes[i])
    ready = max(count - ngram + 1, 0)
    if ready:
        hash_shingles(hashes, ready, ngram, scratch.shingles)
        count = ngram - 1
        for i in range(count):
            hashes[i] = hashes[ready + i]
    return position, count, open_word, ready


@kernel
def shingle_sets(
    data: np.ndarray, offsets: np.ndarray, table: np.ndarray, ngram: int, values: np.ndarray, ends: np.ndarray
) -> int:
    """Write each document's distinct shingles, sorted, to `values`, and the index after its last shingle to `ends`.
    Return the last of these indices.
    """
    scratch, total = new_scratch(ngram), 0
    for document in range(len(offsets) - 1):
        position, stop, count, open_word, end = offsets[document], offsets[document + 1], 0, _ZERO, total
        while position < stop:
            position, count, open_word, ready = next_block(
                data, position, stop, table, ngram, count, open_word, scratch
            )
            values[end : end + ready] = scratch.shingles[:ready]
            end += ready
        total = _unique(values, total, end)
        ends[document] = total
    return total


@kernel
def _unique(values: np.ndarray, start: int, end: int) -> int:
    """Sort `values[start:end]` and move its distinct values to the front; return the position after the last one."""
    values[start:end].sort()
    kept = start
    for i in range(start, end):
        if i == start or values[i] != values[i - 1]:
            values[kept] = values[i]
            kept += 1
    return kept
