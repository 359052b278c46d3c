"""Hashes n-grams: `length` consecutive words of a text, in lowercase (the words of `text/unicode_words.py`).

An n-gram is known by 96 bits: a *key* of 64 bits and a *check* of 32 bits. Both are polynomials over the mixed 64-bit
hashes of the words, modulo 2**64, with different bases and different mixing. The keys of consecutive n-grams are
computed with one multiplication per word, whatever n is; a check is computed only for a key that the index contains.

Different n-grams are mistaken for each other with a probability of about 2**-96 per compared pair. With 4e7 n-grams in
an index and 1e13 words of documents, about 5e-9 wrong matches are to be expected. Two n-grams that differ in one word
only are confused if the 64-bit hashes of the two words are equal, which has a probability of about 2**-64.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

import numpy as np

from datakit.text import hash_mixing, shingle_kernels, unicode_words
from datakit.text.hash_mixing import GOLDEN, MIX_2
from datakit.text.numba_cache import Decorator, cached_njit
from datakit.text.shingle_kernels import decode, mix
from datakit.text.unicode_words import ALONE, CODE_POINTS, WORD

KEY_BASE = np.uint64(0xD6E8FEB86659FD93)  # odd, so that no word is lost; otherwise arbitrary
CHECK_BASE = np.uint64(0xA0761D6478BD642F)  # odd, and different from KEY_BASE
_ZERO, _ONE, _HALF = np.uint64(0), np.uint64(1), np.uint64(32)
_ASCII_END = 128
_NOTHING = np.uint32(0)

kernel: Decorator = cached_njit(hash_mixing, shingle_kernels, unicode_words)


@kernel
def ngram_key(mixed: np.ndarray, start: int, length: int) -> np.uint64:
    """Return the key of the words `start` to `start + length - 1`. mixed: the mixed hashes of the words, uint64."""
    total = _ZERO
    for i in range(start, start + length):
        total = total * KEY_BASE + mixed[i]
    return mix(total + np.uint64(length) * GOLDEN)


@kernel
def ngram_check(mixed: np.ndarray, start: int, length: int) -> np.uint32:
    """Return the check of the words `start` to `start + length - 1`."""
    total = _ZERO
    for i in range(start, start + length):
        total = total * CHECK_BASE + mix(mixed[i] ^ MIX_2)
    return np.uint32(mix(total + np.uint64(length) * GOLDEN) >> _HALF)


@kernel
def consecutive_keys(mixed: np.ndarray, count: int, length: int, keys: np.ndarray) -> None:
    """Write to `keys[:count]` the keys of the n-grams of `length` words that start at words 0 to count - 1."""
    first = _ONE  # the factor of the first word of an n-gram
    total, addend = _ZERO, np.uint64(length) * GOLDEN
    for i in range(length - 1):
        first *= KEY_BASE
        total = total * KEY_BASE + mixed[i]
    for i in range(count):
        total = total * KEY_BASE + mixed[i + length - 1]
        keys[i] = mix(total + addend)
        total -= mixed[i] * first


@kernel
def word_bounds(
    data: np.ndarray, position: int, stop: int, table: np.ndarray, starts: np.ndarray, stops: np.ndarray
) -> int:
    """Write the first byte of each word of `data[position:stop]`, and the byte after its last one. Return the number of
    words. They are the words that `shingle_kernels.hash_words` hashes, in the same order.
    """
    count, inside = 0, False
    while position < stop:
        begin, character = position, np.int64(data[position])
        if character < _ASCII_END:
            position += 1
        else:
            character, position = decode(data, position, stop)
        entry = table[character] if character < CODE_POINTS else _NOTHING
        if entry & WORD:
            if not inside:
                starts[count], inside = begin, True
            stops[count] = position
            continue
        count, inside = count + int(inside), False
        if entry & ALONE:
            starts[count], stops[count] = begin, position
            count += 1
    return count + int(inside)


@kernel
def measure(
    data: np.ndarray, offsets: np.ndarray, table: np.ndarray, words: np.ndarray, characters: np.ndarray
) -> None:
    """Write the number of words of each text, and the number of characters in these words."""
    for text in range(len(offsets) - 1):
        position, stop, inside, count, inner = offsets[text], offsets[text + 1], False, 0, 0
        while position < stop:
            character = np.int64(data[position])
            if character < _ASCII_END:
                position += 1
            else:
                character, position = decode(data, position, stop)
            entry = table[character] if character < CODE_POINTS else _NOTHING
            alone, part = (entry & ALONE) != 0, (entry & WORD) != 0
            count += int(alone) + int(part and not inside)
            inner += int(alone) + int(part)
            inside = part
        words[text], characters[text] = count, inner
