"""Turns texts into symbols, words or lowercase characters, in blocks that fit in the cache, and hashes sequences of
them.

The hash of a sequence is a polynomial over its symbols, modulo 2**64, whose value for any sequence in a block follows
from two sums of the block. So a key costs one multiplication, whatever its length.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from datakit.annotate.lists import characters
from datakit.annotate.lists.characters import MARK
from datakit.text import hash_mixing, shingle_kernels, unicode_words
from datakit.text.hash_mixing import GOLDEN
from datakit.text.numba_cache import Decorator, cached_njit
from datakit.text.shingle_kernels import decode, mix
from datakit.text.unicode_words import ALONE, CHARACTER, CODE_POINTS, WORD

BLOCK = 2048  # symbols per block, besides those that are kept from the block before
LONGEST_ENTRY = 1024  # bytes
BASE = np.uint64(0xD6E8FEB86659FD93)  # odd; otherwise arbitrary
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_WORD_BIT = np.uint32(24)
_ASCII_END = 128
_NOTHING = np.uint32(0)

kernel: Decorator = cached_njit(characters, hash_mixing, shingle_kernels, unicode_words)


class Block(NamedTuple):
    """Buffers for one block of symbols.

    symbols: uint64, hashes of words or characters. places: int64, the byte after a word, or the first byte of a
    character. sums: uint64, the values of the polynomial up to each symbol. powers: uint64, those of BASE. chosen:
    int64, positions.
    """

    symbols: np.ndarray
    places: np.ndarray
    sums: np.ndarray
    powers: np.ndarray
    chosen: np.ndarray


@kernel
def new_block(longest: int) -> Block:
    """Allocate the buffers. longest: the number of symbols of the longest sequence."""
    size = BLOCK + longest + 2
    powers = np.empty(longest + 1, np.uint64)
    powers[0] = _ONE
    for i in range(longest):
        powers[i + 1] = powers[i] * BASE
    return Block(
        np.empty(size, np.uint64),
        np.empty(size, np.int64),
        np.empty(size + 1, np.uint64),
        powers,
        np.empty(size, np.int64),
    )


@kernel
def read_words(
    data: np.ndarray, position: int, stop: int, table: np.ndarray, block: Block, count: int, limit: int,
    open_word: np.uint64,
) -> tuple[int, int, np.uint64]:  # fmt: skip
    """Append words of `data[position:stop]` to the block until the data ends or it has `limit` words. Return the new
    position and count, and the partial hash of a word that has not ended, or 0. table: `list_table`.
    """
    words, ends = block.symbols, block.places
    while position < stop and count < limit:
        byte = data[position]
        if byte < _ASCII_END:
            entry = table[byte]
            # A mask: all bits are set for a word character, and none for any other. No ASCII character is ALONE.
            inside = _ZERO - np.uint64((entry >> _WORD_BIT) & np.uint32(1))
            words[count], ends[count] = open_word, position
            count += int((open_word != _ZERO) & (inside == _ZERO))
            open_word = ((open_word ^ np.uint64(entry)) * GOLDEN) & inside
            position += 1
            continue
        character, after = decode(data, position, stop)
        entry = table[character] if character < CODE_POINTS else _NOTHING
        if entry & WORD:
            open_word = (open_word ^ np.uint64(entry)) * GOLDEN
            position = after
            continue
        if open_word != _ZERO:
            words[count], ends[count] = open_word, position
            count += 1
            open_word = _ZERO
        position = after
        if entry & ALONE:
            words[count], ends[count] = np.uint64(entry) * GOLDEN, position
            count += 1
    if position >= stop and open_word != _ZERO:
        words[count], ends[count] = open_word, stop
        count, open_word = count + 1, _ZERO
    return position, count, open_word


@kernel
def mix_words(block: Block, first: int, count: int) -> None:
    """Mix the hashes of the words from `first` on, so that they can be the symbols of a polynomial."""
    for i in range(first, count):
        block.symbols[i] = mix(block.symbols[i])


@kernel
def read_characters(
    data: np.ndarray, position: int, stop: int, table: np.ndarray, block: Block, count: int, limit: int
) -> tuple[int, int]:
    """Append the lowercase characters of `data[position:stop]` to the block, until the data ends or it has `limit`
    characters. Return the new position and count.
    """
    while position < stop and count < limit:
        byte = data[position]
        block.places[count] = position
        if byte < _ASCII_END:
            block.symbols[count] = np.uint64(table[byte] & CHARACTER)
            position += 1
        else:
            character, position = decode(data, position, stop)
            block.symbols[count] = np.uint64(table[min(character, CODE_POINTS - 1)] & CHARACTER)
        count += 1
    return position, count


@kernel
def add_up(block: Block, count: int) -> None:
    """Compute the sums of a block with `count` symbols."""
    total = _ZERO
    block.sums[0] = total
    for i in range(count):
        total = total * BASE + block.symbols[i]
        block.sums[i + 1] = total


@kernel
def key_of(sums: np.ndarray, power: np.uint64, start: int, length: int) -> np.uint64:
    """Return the key of the symbols `start` to `start + length - 1` of a block. power: `powers[length]`."""
    value = sums[start + length] - sums[start] * power
    return mix(value + np.uint64(length) * GOLDEN)


@kernel
def entry_keys(
    data: np.ndarray,
    offsets: np.ndarray,
    table: np.ndarray,
    words: bool,
    sizes: np.ndarray,
    keys: np.ndarray,
    anchors: np.ndarray,
    lengths: np.ndarray,
    anchor_sizes: np.ndarray,
) -> None:
    """Compute for each entry its key, its anchor, its number of symbols and that of its anchor, which is the largest of
    `sizes` that is possible. Every entry has a symbol and at most LONGEST_ENTRY bytes.
    """
    block = new_block(LONGEST_ENTRY)
    for i in range(len(offsets) - 1):
        if words:
            _, count, _ = read_words(data, offsets[i], offsets[i + 1], table, block, 0, LONGEST_ENTRY + 1, _ZERO)
            mix_words(block, 0, count)
        else:
            _, count = read_characters(data, offsets[i], offsets[i + 1], table, block, 0, LONGEST_ENTRY + 1)
        add_up(block, count)
        size = sizes[0]
        for one in sizes:
            if one <= count:
                size = one
        keys[i] = key_of(block.sums, block.powers[count], 0, count)
        anchors[i] = key_of(block.sums, block.powers[size], 0, size)
        lengths[i], anchor_sizes[i] = count, size


@kernel
def word_start(data: np.ndarray, start: int, end: int, table: np.ndarray) -> int:
    """Return the first byte of the word that ends before `end`. start: the document's first byte."""
    position, first = end, end
    while position > start:
        position -= 1
        while data[position] & 0xC0 == 0x80 and position > start:
            position -= 1
        entry = _entry_at(data, position, end, table)
        if entry & ALONE:
            return position if first == end else first
        if not entry & WORD:
            return first
        first = position
    return first


@kernel
def _entry_at(data: np.ndarray, position: int, stop: int, table: np.ndarray) -> Any:
    """Return the entry in `table`, uint32, of the character at a position."""
    byte = data[position]
    if byte < _ASCII_END:
        return table[byte]
    character, _ = decode(data, position, stop)
    return table[min(character, CODE_POINTS - 1)]


@kernel
def _after(data: np.ndarray, position: int) -> int:
    """Return the position after the character at `position`."""
    byte = data[position]
    return position + (1 if byte < _ASCII_END else 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2)


@kernel
def match_end(
    data: np.ndarray, position: int, stop: int, table: np.ndarray, text: np.ndarray, at: int, last: int, words: bool
) -> int:
    """Return the byte after an entry that occurs at `position`, or -1 if it does not occur there.

    text[at:last]: the bytes of the entry, in lowercase. words: True if a space of the entry stands for one or more
    characters that are not part of a word.
    """
    while at < last:
        if words and text[at] == 32:
            first = position
            while position < stop and not _entry_at(data, position, stop, table) & (WORD | ALONE):
                position = _after(data, position)
            if position == first:
                return -1
            at += 1
            continue
        if position >= stop:
            return -1
        lower = _entry_at(data, position, stop, table) & CHARACTER
        if lower != _entry_at(text, at, last, table) & CHARACTER:
            return -1
        position, at = _after(data, position), _after(text, at)
    return position


@kernel
def ends_inside(data: np.ndarray, start: int, first: int, end: int, stop: int, table: np.ndarray) -> bool:
    """Return True if the bytes [first, end) of a document begin or end inside a word. A mark belongs to the character
    before it.
    """
    if first > start:
        before = first - 1
        while data[before] & 0xC0 == 0x80 and before > start:
            before -= 1
        entry = _entry_at(data, before, first, table)
        if entry & WORD and _entry_at(data, first, stop, table) & WORD:
            return True
    if end >= stop:
        return False
    entry, last = _entry_at(data, end, stop, table), end - 1
    while data[last] & 0xC0 == 0x80 and last > first:
        last -= 1
    return bool(entry & MARK) or bool(entry & WORD and _entry_at(data, last, stop, table) & WORD)
