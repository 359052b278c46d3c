"""The compiled loops from bytes of text to shingles and signatures.

A word's hash is a multiplicative hash of its lower-case characters; a shingle's is a linear form, with odd
coefficients, of its words' mixed hashes. Both are 64 bits wide: in comparing 10 million documents with 64 others each,
that two different shingles are taken for one has a probability of some 10^-6.

The loop over bytes has no branch in ASCII text (a border of words is arithmetic, not a jump that the processor would
guess wrong) and works in blocks that stay in the first-level cache, so memory does not grow with the document. Finding
and hashing words runs at 500 to 600 MB of text a CPU-second, with 112 permutations 300 to 500.

All in one file: numba caches what it compiles by the file that holds the function, and would not notice that a function
of another file has changed.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

import numpy as np
from numba import njit

from datakit.text.hash_mixing import GOLDEN, MIX_1
from datakit.text.hash_mixing import mix as mix_values
from datakit.text.unicode_words import ALONE, CODE_POINTS, WORD

BLOCK = 2048  # words at a time: 16 kB of hashes
ELIGIBLE, TOO_SHORT, SATURATED = 0, 1, 2
TINY = np.uint32(256)  # minima below it say little: more than some ten million distinct shingles
SATURATED_SHARE = 7 / 8  # of the minima
_ZERO, _ONE, _HALF = np.uint64(0), np.uint64(1), np.uint64(32)
_WORD_BIT = np.uint32(24)
_ASCII_END = 128
_NOTHING = np.uint32(0)
_TOP = np.uint32(0xFFFFFFFF)
assert np.uint32(1) << _WORD_BIT == WORD

mix = njit(cache=True, nogil=True, inline="always")(mix_values)


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
            inside = _ZERO - np.uint64(entry >> _WORD_BIT)  # all ones in a word; ASCII has no ALONE
            hashes[count] = open_word
            count += int((open_word != _ZERO) & (inside == _ZERO))
            open_word = ((open_word ^ np.uint64(entry)) * GOLDEN) & inside
            position += 1
        else:
            character, position = _decode(data, position, stop)
            entry = table[character] if character < CODE_POINTS else _NOTHING
            if entry & WORD:
                open_word = (open_word ^ np.uint64(entry)) * GOLDEN
                continue
            if open_word != _ZERO:
                hashes[count] = open_word
                count += 1
                open_word = _ZERO
            if entry & ALONE:
                hashes[count] = np.uint64(entry) * GOLDEN
                count += 1
    return position, count, open_word


@njit(cache=True, nogil=True)
def hash_shingles(hashes: np.ndarray, count: int, ngram: int, shingles: np.ndarray) -> None:
    """The hashes of the `count` runs of `ngram` words into `shingles[:count]`."""
    for i in range(count):
        shingles[i] = _ZERO
    coefficient = _ONE
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
    if position >= stop and open_word != _ZERO:
        hashes[count] = open_word
        count, open_word = count + 1, _ZERO
    ready = max(count - ngram + 1, 0)
    if ready:
        hash_shingles(hashes, ready, ngram, shingles)
        count = ngram - 1
        for i in range(count):
            hashes[i] = hashes[ready + i]
    return position, count, open_word, ready


@njit(cache=True, nogil=True)
def shingle_sets(
    data: np.ndarray, offsets: np.ndarray, table: np.ndarray, ngram: int, values: np.ndarray, ends: np.ndarray
) -> int:
    hashes, shingles = np.empty(BLOCK + ngram + 2, np.uint64), np.empty(BLOCK + ngram + 2, np.uint64)
    total = 0
    for document in range(len(offsets) - 1):
        position, stop, count, open_word, end = offsets[document], offsets[document + 1], 0, _ZERO, total
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
        keys[band] = mix(np.uint64(band) + _ONE)
    for row in range(rows):
        for band in range(len(keys)):
            keys[band] = mix(keys[band] ^ np.uint64(minima[band * rows + row]))


@njit(cache=True, nogil=True)
def sign(
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
        position, stop, count, open_word = offsets[document], offsets[document + 1], 0, _ZERO
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
