"""Remembers the tokens of words. Most words of a text have occurred before, so only a few are merged.

There are two hash tables in sets. Words of up to 8 bytes and two tokens, most words of most texts, are in the table of
short words, in which a set of four fits in a cache line. Words of up to 24 bytes and nine tokens are in the table of
long words, in which an entry fits in a cache line. A word that does not fit into its set replaces the oldest one, so
memory is constant and nothing has to be cleared. An entry holds the word itself, not only a hash of it, so two words
are never mistaken for each other. A word with more bytes or tokens is merged each time.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

from datakit.text.hash_mixing import GOLDEN, MIX_1, MIX_2
from datakit.tokenize.encoders.bpe.memory_access import (
    address_of,
    byte,
    put32,
    put64,
    text64,
    trailing_zeros,
    word32,
    word64,
)

SHORT_BITS, LONG_BITS = 15, 16  # the logarithms of the numbers of sets
LONGEST_SHORT, LONGEST = np.uint64(8), np.uint64(24)  # bytes in a word
MOST_SHORT_TOKENS = np.uint64(2)
MOST_TOKEN_BITS = 24  # in a token of a short word
NOT_FOUND = np.uint64(0xFFFFFFFFFFFFFFFF)
_LINE = 64  # bytes in a cache line
_SHORT_SIZE, _LONG_SIZE = 8 << SHORT_BITS, 16 << LONG_BITS  # numbers in the tables
_ZERO, _ONE, _TWO, _THREE, _FOUR, _EIGHT, _SIXTEEN = (np.uint64(number) for number in (0, 1, 2, 3, 4, 8, 16))
_HALF, _ALL, _BYTE = np.uint64(32), np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0xFF)
_SHORT_SHIFT, _LONG_SHIFT = np.uint64(64 - SHORT_BITS), np.uint64(64 - LONG_BITS)
# A short set: four words, then four times `size | number of tokens << 4 | first token << 8 | second token << 32`.
_NIBBLE = np.uint64(15)
_TOKEN = np.uint64((1 << MOST_TOKEN_BITS) - 1)
# A long set: two entries, each with the bytes of a word (3 numbers), `size | number of tokens << 8 | first token <<
# 32`, and the other tokens (4 numbers).
_ABOUT, _TOKENS, _ENTRY = np.uint64(3), np.uint64(4), np.uint64(8)
_MOST_TOKENS = np.uint64(9)

kernel = njit(nogil=True)
hot = njit(nogil=True, forceinline=True)


@dataclass(frozen=True, eq=False)
class WordCache:
    """The tables of short and of long words, uint64, each at an address that is a multiple of _LINE. They are parts of
    one array, so that numpy asks the system for large pages.
    """

    short: np.ndarray
    long: np.ndarray

    @classmethod
    def new(cls) -> WordCache:
        raw = np.zeros(_SHORT_SIZE + _LONG_SIZE + _LINE // 8, np.uint64)
        start = -address_of(raw) % _LINE // 8
        middle = start + _SHORT_SIZE
        return cls(raw[start:middle], raw[middle : middle + _LONG_SIZE])

    def copy(self) -> WordCache:
        """Return a cache with the same words."""
        copied = self.new()
        copied.short[:], copied.long[:] = self.short, self.long
        return copied

    def addresses(self) -> CacheAddresses:
        return CacheAddresses(np.uint64(address_of(self.short)), np.uint64(address_of(self.long)))


class CacheAddresses(NamedTuple):
    """The addresses of the tables of a `WordCache`: uint64 each."""

    short: np.uint64
    long: np.uint64


@hot
def short_key(text: np.uint64, at: np.uint64, size: np.uint64, readable: np.uint64) -> np.uint64:
    """Return the bytes of a word of at most 8 bytes as a number, filled up with zeros."""
    if at + _EIGHT <= readable:
        return text64(text, at) & (_ALL >> ((_EIGHT - size) << _THREE))
    key = _ZERO
    for i in range(size):
        key |= byte(text, at + i) << (i << _THREE)
    return key


@hot
def short_set(key: np.uint64, size: np.uint64) -> np.uint64:
    """Return the index of the first number of the set that a short word belongs to."""
    mixed = (key ^ size) * GOLDEN
    return (((mixed ^ mixed >> _HALF) * MIX_1) >> _SHORT_SHIFT) << _THREE


@hot
def copy_short(
    table: np.uint64, start: np.uint64, key: np.uint64, size: np.uint64, out: np.uint64, held: np.uint64
) -> np.uint64:
    """Write the tokens of a short word to `out`, from index `held` on, and return the index after them; NOT_FOUND if
    the set at `start` does not hold the word. All four words of the set are compared, without a branch for each.
    """
    found = np.uint64(word64(table, start) == key) & np.uint64(word64(table, start + _FOUR) & _NIBBLE == size)
    for i in range(_ONE, _FOUR):
        equal = np.uint64(word64(table, start + i) == key)
        same = np.uint64(word64(table, start + _FOUR + i) & _NIBBLE == size)
        found |= (equal & same) << i
    if found == _ZERO:
        return NOT_FOUND
    about = word64(table, start + _FOUR + trailing_zeros(found))
    put32(out, held, about >> _EIGHT & _TOKEN)
    put32(out, held + _ONE, about >> _HALF)
    return held + (about >> _FOUR & _NIBBLE)


@kernel
def remember_short(
    table: np.uint64, start: np.uint64, key: np.uint64, size: np.uint64, tokens: np.uint64, count: np.uint64
) -> None:
    """Put a short word and its one or two tokens into its set. tokens: the address of `count` numbers of 32 bits."""
    for i in range(_THREE):
        to = start + _THREE - i
        put64(table, to, word64(table, to - _ONE))
        put64(table, to + _FOUR, word64(table, to + _THREE))
    second = word32(tokens, _ONE) if count > _ONE else _ZERO
    put64(table, start, key)
    put64(table, start + _FOUR, size | count << _FOUR | word32(tokens, _ZERO) << _EIGHT | second << _HALF)


@hot
def long_key(
    text: np.uint64, at: np.uint64, size: np.uint64, readable: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Return the bytes of a word of at most LONGEST bytes as three numbers, filled up with zeros."""
    if size <= _EIGHT:
        return short_key(text, at, size, readable), _ZERO, _ZERO
    first = text64(text, at)
    if at + LONGEST <= readable:
        second = text64(text, at + _EIGHT)
        if size <= _SIXTEEN:
            return first, second & (_ALL >> ((_SIXTEEN - size) << _THREE)), _ZERO
        return first, second, text64(text, at + _SIXTEEN) & (_ALL >> ((LONGEST - size) << _THREE))
    second = third = _ZERO
    for i in range(_EIGHT, size):
        value = byte(text, at + i) << ((i & np.uint64(7)) << _THREE)
        if i < _SIXTEEN:
            second |= value
        else:
            third |= value
    return first, second, third


@hot
def long_set(first: np.uint64, second: np.uint64, third: np.uint64, size: np.uint64) -> np.uint64:
    """Return the index of the first number of the set that a long word belongs to."""
    mixed = (first ^ second * MIX_1 ^ third * MIX_2 ^ size) * GOLDEN
    return (((mixed ^ mixed >> _HALF) * MIX_1) >> _LONG_SHIFT) << _FOUR


@hot
def copy_long(
    table: np.uint64, start: np.uint64, first: np.uint64, second: np.uint64, third: np.uint64, size: np.uint64,
    out: np.uint64, held: np.uint64,
) -> np.uint64:  # fmt: skip
    """Write the tokens of a long word to `out`, from index `held` on, and return the index after them; NOT_FOUND if the
    set at `start` does not hold the word.
    """
    for i in range(_TWO):
        entry = start + (i << _THREE)
        about = word64(table, entry + _ABOUT)
        different = word64(table, entry) ^ first | word64(table, entry + _ONE) ^ second
        if different | word64(table, entry + _TWO) ^ third | (about & _BYTE) ^ size == _ZERO:
            put32(out, held, about >> _HALF)
            for j in range(_FOUR):
                both = word64(table, entry + _TOKENS + j)
                put32(out, held + j + j + _ONE, both)
                put32(out, held + j + j + _TWO, both >> _HALF)
            return held + (about >> _EIGHT & _BYTE)
    return NOT_FOUND


@kernel
def remember_long(
    table: np.uint64, start: np.uint64, first: np.uint64, second: np.uint64, third: np.uint64, size: np.uint64,
    tokens: np.uint64, count: np.uint64,
) -> None:  # fmt: skip
    """Put a long word and its tokens into its set, unless they are too many. tokens: the address of `count` numbers of
    32 bits; there must be memory for nine.
    """
    if count > _MOST_TOKENS:
        return
    for i in range(_ENTRY):
        put64(table, start + _ENTRY + i, word64(table, start + i))
    put64(table, start, first)
    put64(table, start + _ONE, second)
    put64(table, start + _TWO, third)
    put64(table, start + _ABOUT, size | count << _EIGHT | word32(tokens, _ZERO) << _HALF)
    # Tokens beyond `count` are leftovers of other words, which no one reads.
    for j in range(_FOUR):
        both = word32(tokens, j + j + _ONE) | word32(tokens, j + j + _TWO) << _HALF
        put64(table, start + _TOKENS + j, both)
