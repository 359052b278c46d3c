"""Scans a document once: finds its words and line breaks, hashes the words, and counts what single characters tell.

A word is a maximal run of characters other than whitespace. A character of a script that is written without spaces
(Han, Hiragana, Katakana, Thai, Lao, Khmer, Myanmar, Tibetan) is a word by itself. Whitespace is what `str.isspace`
accepts. Hashes have 64 bits and only speed up comparisons: words are equal if their bytes are equal.

Each character costs one lookup in the table of flags and one step of the hash.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.annotate.heuristics.kernels import characters, counts, phrases
from datakit.annotate.heuristics.kernels.characters import (
    ALONE,
    ASCII_END,
    BREAK,
    LETTER,
    SPACE,
    SPECIAL,
    VISIBLE,
    decode,
)
from datakit.annotate.heuristics.kernels.counts import (
    ALPHABETIC_WORDS,
    BRACES,
    CHARACTERS,
    ELLIPSES,
    HASHES,
    LONGEST_WORD,
    NON_SYMBOL_WORDS,
    WORD_CHARACTERS,
    WORDS,
)
from datakit.annotate.heuristics.kernels.phrases import BRACE, phrase_at
from datakit.text import hash_mixing
from datakit.text.hash_mixing import GOLDEN
from datakit.text.numba_cache import cached_njit

GLUED = 256  # flag of a word that follows another word without whitespace between them
ELLIPSIS = 0x2026

kernel = cached_njit(characters, counts, phrases, hash_mixing)


class Words(NamedTuple):
    """The words of a document. starts, stops: bytes, int64. lengths: characters, int64. flags: GLUED, and the flags of
    all characters, int16. hashes: uint64.
    """

    starts: np.ndarray
    stops: np.ndarray
    lengths: np.ndarray
    flags: np.ndarray
    hashes: np.ndarray


class Marks(NamedTuple):
    """Places in a document, ascending. breaks: the bytes at which line breaks start, int64. characters: the number of
    characters before each of them, int64. places: the bytes at which phrases and curly brackets start, int64. kinds:
    which phrase each of these is, uint8.
    """

    breaks: np.ndarray
    characters: np.ndarray
    places: np.ndarray
    kinds: np.ndarray


@kernel
def scan(
    data: np.ndarray, start: int, stop: int, table: np.ndarray, words: Words, marks: Marks, row: np.ndarray
) -> tuple[int, int, int]:
    """Write the words and marks of the document `data[start:stop]`, and add its counts to `row`. Return the numbers of
    words, line breaks and places.
    """
    count, breaks, places, characters = 0, 0, 0, 0
    position, first, length, hashed, seen, last = start, start, 0, np.uint64(0), 0, start - 1
    while position < stop:
        character, after = np.int64(data[position]), position + 1
        if character >= ASCII_END:
            character, after = decode(data, position)
        flags = np.int64(table[character])
        if length and (flags | seen) & (SPACE | ALONE):
            last = _close(words, count, first, position, length, seen | (GLUED if first == last else 0), hashed, row)
            count, length, hashed, seen = count + 1, 0, np.uint64(0), 0
        if flags & SPACE:
            if flags & BREAK:
                marks.breaks[breaks], marks.characters[breaks] = position, characters
                breaks += 1
        else:
            if not length:
                first = position
            length += 1
            seen |= flags
            hashed = (hashed ^ np.uint64(character)) * GOLDEN
            if flags & SPECIAL:
                kind = _special(data, start, stop, position, character, row)
                if kind:
                    marks.places[places], marks.kinds[places] = position, kind
                    places += 1
        characters += 1
        position = after
    if length:
        _close(words, count, first, stop, length, seen | (GLUED if first == last else 0), hashed, row)
        count += 1
    row[CHARACTERS], row[WORDS] = characters, count
    return count, breaks, places


@kernel
def _close(
    words: Words, count: int, first: int, stop: int, length: int, seen: int, hashed: np.uint64, row: np.ndarray
) -> int:
    """Write a word, and return where it ends."""
    words.starts[count], words.stops[count], words.lengths[count] = first, stop, length
    words.flags[count], words.hashes[count] = seen, hashed
    if seen & VISIBLE:
        row[NON_SYMBOL_WORDS] += 1
        row[WORD_CHARACTERS] += length
    if seen & LETTER:
        row[ALPHABETIC_WORDS] += 1
    row[LONGEST_WORD] = max(row[LONGEST_WORD], length)
    return stop


@kernel
def _special(data: np.ndarray, start: int, stop: int, position: int, character: int, row: np.ndarray) -> int:
    """Count a special character, and return the kind of what it marks; 0 if it marks nothing."""
    if character == ord("."):
        if position == start or data[position - 1] != ord("."):
            end = position + 1
            while end < stop and data[end] == ord("."):
                end += 1
            row[ELLIPSES] += (end - position) // 3
        return 0
    if character == ord("#"):
        row[HASHES] += 1
        return 0
    if character == ELLIPSIS:
        row[ELLIPSES] += 1
        return 0
    if character == ord("{"):
        row[BRACES] += 1
        return BRACE
    return phrase_at(data, start, stop, position)
