"""Scans a document once: finds its words and line breaks, and counts special characters.

A word is a maximal run of characters other than whitespace. A character of a script that is written without spaces
(Han, Hiragana, Katakana, Thai, Lao, Khmer, Myanmar, Tibetan) is a word by itself. Whitespace is what `str.isspace`
accepts.

An ASCII character costs one lookup in a table of 256 bytes; other characters are decoded first.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.annotate.heuristics.kernels import characters, counts, phrases, spans
from datakit.annotate.heuristics.kernels.characters import (
    ALONE,
    ASCII_END,
    BREAK,
    CLOSER,
    LETTER,
    SPACE,
    SPECIAL,
    TERMINAL,
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
from datakit.annotate.heuristics.kernels.phrases import BRACE, may_be_phrase, phrase_at
from datakit.annotate.heuristics.kernels.spans import WINDOW, key_of, short_key
from datakit.text.numba_cache import cached_njit

# further flags of a word. GLUED: it follows another word without whitespace between them. ENDING: its last character is
# TERMINAL, a CLOSER, or not ASCII.
GLUED, ENDING = 256, 512
ELLIPSIS = 0x2026

kernel = cached_njit(characters, counts, phrases, spans)


class Words(NamedTuple):
    """The words of a document. starts, stops: bytes, int32. lengths: characters, int32. flags: the flags of all
    characters, GLUED and ENDING, int16. keys: see `spans.py`, uint64.
    """

    starts: np.ndarray
    stops: np.ndarray
    lengths: np.ndarray
    flags: np.ndarray
    keys: np.ndarray


class Marks(NamedTuple):
    """Places in a document, ascending. breaks: the bytes at which line breaks start, int32. characters, words: the
    numbers of characters and words before each of them, int32. places: the bytes at which phrases and curly brackets
    start, int32. kinds: which phrase each of these is, uint8.
    """

    breaks: np.ndarray
    characters: np.ndarray
    words: np.ndarray
    places: np.ndarray
    kinds: np.ndarray


class Tables(NamedTuple):
    """The flags of characters (`flags_table`) and of bytes (`byte_table`)."""

    characters: np.ndarray
    bytes: np.ndarray


@kernel
def scan(
    data: np.ndarray, windows: np.ndarray, tables: Tables, words: Words, marks: Marks, row: np.ndarray
) -> tuple[int, int, int]:
    """Write the words and marks of a document, and add its counts to `row`. Return the numbers of words, line breaks
    and places. windows: see `windows_of`.
    """
    # numba counts references when a loop takes an array from a tuple
    starts, stops, lengths, word_flags, keys = words
    break_places, break_characters, break_words, mark_places, mark_kinds = marks
    table, byte_flags = tables
    count, breaks, places, position, extra, last = 0, 0, 0, 0, 0, -1
    while position < len(data):
        character, after = _character(data, position)
        flags = np.int64(table[character])
        if flags & SPACE:
            if flags & BREAK:
                break_places[breaks], break_characters[breaks] = position, position - extra
                break_words[breaks] = count
                breaks += 1
            extra += after - position - 1
            position = after
            continue
        first, bytes_before, seen = position, extra, flags | (GLUED if position == last else 0)
        while True:
            if flags & SPECIAL and (not flags & LETTER or may_be_phrase(data, position)):
                kind = _special(data, position, character, row)
                if kind:
                    mark_places[places], mark_kinds[places] = position, kind
                    places += 1
            extra += after - position - 1
            position = after
            if seen & ALONE:
                break
            while position < len(data):
                flags = np.int64(byte_flags[data[position]])
                if flags & (SPACE | ALONE | SPECIAL):
                    break
                seen |= flags
                position += 1
            if position >= len(data):
                break
            character, after = _character(data, position)
            flags = np.int64(table[character])
            if flags & (SPACE | ALONE):
                break
            seen |= flags
        seen |= ENDING if byte_flags[data[position - 1]] & (TERMINAL | CLOSER) else 0
        starts[count], stops[count], word_flags[count] = first, position, seen
        lengths[count] = position - first - (extra - bytes_before)
        if position - first < WINDOW and first < len(windows):
            keys[count] = short_key(windows[first], position - first)
        else:
            keys[count] = key_of(data, windows, first, position)
        count, last = count + 1, position
    row[CHARACTERS], row[WORDS] = len(data) - extra, count
    return count, breaks, places


@kernel
def _character(data: np.ndarray, position: int) -> tuple[int, int]:
    """Return the character that starts at `position` and the position after it; fast for ASCII."""
    byte = np.int64(data[position])
    if byte < ASCII_END:
        return byte, position + 1  # pyright: ignore[reportReturnType] - a kernel
    return decode(data, position)


@kernel
def count_words(words: Words, count: int, row: np.ndarray) -> int:
    """Write the counts of the first `count` words to `row`, and return the union of their flags."""
    visible, letters, alphabetic, longest, every = 0, 0, 0, 0, 0
    for word in range(count):
        flags, length = np.int64(words.flags[word]), np.int64(words.lengths[word])
        every |= flags
        shown = (flags & VISIBLE) != 0
        visible += shown
        letters += length * shown
        alphabetic += (flags & LETTER) != 0
        longest = max(longest, length)
    row[NON_SYMBOL_WORDS], row[WORD_CHARACTERS], row[ALPHABETIC_WORDS] = visible, letters, alphabetic
    row[LONGEST_WORD] = longest
    return every  # pyright: ignore[reportReturnType] - a kernel


@kernel
def _special(data: np.ndarray, position: int, character: int, row: np.ndarray) -> int:
    """Count a special character, and return the kind of what it marks; 0 if it marks nothing."""
    if character == ord("."):
        if not position or data[position - 1] != ord("."):
            end = position + 1
            while end < len(data) and data[end] == ord("."):
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
    return phrase_at(data, position)
