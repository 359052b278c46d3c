"""Text to shingles, straight from Arrow's buffers: words, their hashes, and hashes of runs of `ngram` words.

A word's hash is a multiplicative hash of its lower-case characters; a shingle's is a linear form, with odd
coefficients, of its words' mixed hashes. Both are 64 bits wide: among the shingles of 10 million documents that one
document is compared with, a false agreement is a matter of 10^-7.

The loop over bytes has no branch in ASCII text (a border of words is arithmetic, not a jump that the processor would
guess wrong) and works in blocks that stay in the first-level cache, so memory does not grow with the document:
500 to 600 MB of text a CPU-second, shingles included. Compiled by numba once and cached on disk; `warm()` does it.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numba import njit

from datakit.dedup.words import ALONE, CODE_POINTS, WORD, character_table

BLOCK = 2048  # words at a time: 16 kB of hashes
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
ZERO = np.uint64(0)
ONE = np.uint64(1)
_WORD_BIT = np.uint32(24)
_ASCII_END = 128
_NOTHING = np.uint32(0)
assert np.uint32(1) << _WORD_BIT == WORD


@njit(cache=True, nogil=True, inline="always")
def mix(value: np.uint64) -> np.uint64:
    """A bijection of uint64 whose every output bit depends on every input bit (splitmix64's finalizer)."""
    value = (value ^ (value >> np.uint64(30))) * MIX_1
    value = (value ^ (value >> np.uint64(27))) * MIX_2
    return value ^ (value >> np.uint64(31))


@njit(cache=True, nogil=True)
def _decode(data: np.ndarray, position: int, stop: int) -> tuple[np.int64, int]:
    """The non-ASCII character at `position` and where the next one begins; CODE_POINTS for bytes that are cut off."""
    byte = data[position]
    length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2
    if position + length > stop:
        return np.int64(CODE_POINTS), stop
    character = np.uint32(byte) & np.uint32((1 << (7 - length)) - 1)
    for i in range(1, length):
        character = (character << np.uint32(6)) | np.uint32(data[position + i] & 63)
    return np.int64(character), position + length


@njit(cache=True, nogil=True)
def hash_words(
    data: np.ndarray, position: int, stop: int, table: np.ndarray, hashes: np.ndarray, count: int, open_word: np.uint64
) -> tuple[int, int, np.uint64]:
    """Hash words of `data[position:stop]` into `hashes[count:]` until BLOCK are there.

    open_word: the hash so far of a word that began before, 0 if none did. Returns where it stopped, and the new count
    and open word. A word's hash before mixing: (h ^ entry) * GOLDEN for each character, from 0.
    """
    while position < stop and count < BLOCK:
        byte = data[position]
        if byte < _ASCII_END:
            entry = table[byte]
            inside = ZERO - np.uint64(entry >> _WORD_BIT)  # all ones in a word; ASCII has no ALONE
            hashes[count] = open_word
            count += int((open_word != ZERO) & (inside == ZERO))
            open_word = ((open_word ^ np.uint64(entry)) * GOLDEN) & inside
            position += 1
        else:
            character, position = _decode(data, position, stop)
            entry = table[character] if character < CODE_POINTS else _NOTHING
            if entry & WORD:
                open_word = (open_word ^ np.uint64(entry)) * GOLDEN
                continue
            if open_word != ZERO:
                hashes[count] = open_word
                count += 1
                open_word = ZERO
            if entry & ALONE:
                hashes[count] = np.uint64(entry) * GOLDEN
                count += 1
    return position, count, open_word


@njit(cache=True, nogil=True)
def hash_shingles(hashes: np.ndarray, count: int, ngram: int, shingles: np.ndarray) -> None:
    """The hashes of the `count` runs of `ngram` words into `shingles[:count]`."""
    for i in range(count):
        shingles[i] = ZERO
    coefficient = ONE
    for j in range(ngram):
        coefficient *= MIX_1
        for i in range(count):
            shingles[i] += mix(hashes[i + j]) * coefficient
    for i in range(count):
        shingles[i] = mix(shingles[i])


@njit(cache=True, nogil=True)
def next_block(
    data: np.ndarray,
    position: int,
    stop: int,
    table: np.ndarray,
    ngram: int,
    hashes: np.ndarray,
    count: int,
    open_word: np.uint64,
    shingles: np.ndarray,
) -> tuple[int, int, np.uint64, int]:
    """The next shingles of a document; call it with position = its start, count = 0 and open_word = 0 first.

    Returns (position, count, open_word) for the next call, and how many shingles there are now.
    """
    position, count, open_word = hash_words(data, position, stop, table, hashes, count, open_word)
    if position >= stop and open_word != ZERO:
        hashes[count] = open_word
        count, open_word = count + 1, ZERO
    ready = max(count - ngram + 1, 0)
    if ready:
        hash_shingles(hashes, ready, ngram, shingles)
        count = ngram - 1
        for i in range(count):
            hashes[i] = hashes[ready + i]
    return position, count, open_word, ready


@njit(cache=True, nogil=True)
def _shingle_sets(
    data: np.ndarray, offsets: np.ndarray, table: np.ndarray, ngram: int, values: np.ndarray, ends: np.ndarray
) -> int:
    hashes, shingles = np.empty(BLOCK + ngram + 2, np.uint64), np.empty(BLOCK + ngram + 2, np.uint64)
    total = 0
    for document in range(len(offsets) - 1):
        position, stop, count, open_word, end = offsets[document], offsets[document + 1], 0, ZERO, total
        while position < stop:
            position, count, open_word, ready = next_block(
                data, position, stop, table, ngram, hashes, count, open_word, shingles
            )
            values[end : end + ready] = shingles[:ready]
            end += ready
        total = _unique(values, total, end)
        ends[document] = total
    return total


@njit(cache=True, nogil=True)
def _unique(values: np.ndarray, start: int, end: int) -> int:
    """Sort `values[start:end]`, move its distinct values to the front; returns where they end."""
    values[start:end].sort()
    kept = start
    for i in range(start, end):
        if i == start or values[i] != values[i - 1]:
            values[kept] = values[i]
            kept += 1
    return kept


def text_buffers(texts: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """The bytes, uint8, and the offsets into them, int64 [N + 1], of a column of strings; no copy of a large_string."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks() if texts.num_chunks != 1 else texts.chunk(0)
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.chunk(0)
    if not pa.types.is_large_string(texts.type):
        texts = texts.cast(pa.large_string())
    if not len(texts):
        return np.frombuffer(b"\0", np.uint8), np.frombuffer(bytes(8), np.int64)
    _, offsets, data = texts.buffers()
    window = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data if data else b"\0", np.uint8), window


def shingle_sets(texts: pa.Array | pa.ChunkedArray, ngram: int) -> tuple[np.ndarray, np.ndarray]:
    """Each document's set of shingles, sorted: (offsets int64 [N + 1], values uint64).

    Memory: 8 bytes a shingle; before repeats are gone, up to 4 times the bytes of the texts are reserved.
    """
    data, window = text_buffers(texts)
    most = (int(window[-1] - window[0]) + 1) // 2  # a word and what parts it from the next take two bytes at least
    values, ends = np.empty(most + len(window), np.uint64), np.zeros(len(window), np.int64)
    total = _shingle_sets(data, window, character_table(), ngram, values, ends[1:])
    return ends, values[:total]


def warm() -> None:
    """Compile or load the kernels, so that no task does."""
    shingle_sets(pa.array(["eins zwei drei vier fünf sechs 七 八"], pa.large_string()), 5)
