"""Implements the compiled loop that divides texts into passages, removes the differences that a search ignores, and
hashes what remains.

A line ends with U+000A or with the text; its span includes this line break. A paragraph consists of consecutive lines
that are not blank; its span includes the blank lines that follow. Blank lines are no passages.

If a search ignores no differences, the bytes of the passage are hashed, without the line break at its end. If it
ignores white space, each run counts as one space, and runs at both ends are removed. If it ignores case, characters are
lowercased one by one, as in `text/unicode_words.py`. If it ignores digits, each digit from 0 to 9 counts as 0. If it
ignores punctuation, every character that is neither white space nor part of a word is removed.

Cost: two to four ns per byte. Memory: one passage, normalized.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.passages import hashing
from datakit.passages.hashing import BLOCK, hash_128
from datakit.text import shingle_kernels, unicode_words
from datakit.text.numba_cache import Decorator, cached_njit
from datakit.text.shingle_kernels import decode
from datakit.text.unicode_words import ALONE, CHARACTER, CODE_POINTS, WORD

NEWLINE, SPACE = 10, 32
BLANK, DROPPED, WIDE = 256, 257, 258  # the codes of white space, punctuation to ignore, and bytes of other characters
LOWERED, UNPUNCTUATED, SQUEEZED = 1, 2, 4  # flags of the differences to ignore in characters that are not ASCII
_IN_WORD = WORD | ALONE

kernel: Decorator = cached_njit(hashing, shingle_kernels, unicode_words)


class Rules(NamedTuple):
    """The settings of a search for kernels. codes: how each byte is normalized, uint16 [256]. table: that of
    `unicode_words.py`. paragraphs: True for paragraphs, False for lines.
    """

    codes: np.ndarray
    table: np.ndarray
    flags: int
    paragraphs: bool
    min_bytes: int
    min_words: int
    seed: np.uint64


class Passages(NamedTuple):
    """Found passages. texts: the index of each one's text. starts, stops: its span. high, low: its hash."""

    texts: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    high: np.ndarray
    low: np.ndarray


class _State(NamedTuple):
    """The passage that is being normalized: its number of bytes, its number of words, whether white space must be
    written before the next character, and whether the last character was part of a word.
    """

    length: int
    words: int
    pending: bool
    inside: bool


@kernel
def _is_white_space(character: np.int64) -> bool:
    """Return True for white space that is not ASCII (see `text/white_space.py`)."""
    if character < 0x1680:
        return character in (0x85, 0xA0)
    return bool(0x2000 <= character <= 0x200A or character in (0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000))


@kernel
def _is_blank(data: np.ndarray, position: int, stop: int, codes: np.ndarray) -> bool:
    """Return True if `data[position:stop]` is white space."""
    while position < stop:
        code = codes[data[position]]
        if code == BLANK:
            position += 1
        elif code == WIDE:
            character, position = decode(data, position, stop)
            if not _is_white_space(character):
                return False
        else:
            return False
    return True


@kernel
def _encode(character: np.int64, buffer: np.ndarray, length: int) -> int:
    """Append a character in UTF-8, and return the new length."""
    if character < 0x80:
        buffer[length] = character
        return length + 1
    if character < 0x800:
        buffer[length] = 0xC0 | character >> 6
        buffer[length + 1] = 0x80 | character & 63
        return length + 2
    if character < 0x10000:
        buffer[length] = 0xE0 | character >> 12
        buffer[length + 1] = 0x80 | character >> 6 & 63
        buffer[length + 2] = 0x80 | character & 63
        return length + 3
    buffer[length] = 0xF0 | character >> 18
    buffer[length + 1] = 0x80 | character >> 12 & 63
    buffer[length + 2] = 0x80 | character >> 6 & 63
    buffer[length + 3] = 0x80 | character & 63
    return length + 4


@kernel
def _append_line(data: np.ndarray, position: int, stop: int, rules: Rules, buffer: np.ndarray, state: _State) -> _State:
    """Append a line to the passage."""
    length, words, pending, inside = state.length, state.words, state.pending, state.inside
    squeezed = rules.flags & SQUEEZED != 0
    while position < stop:
        code, start, blank = rules.codes[data[position]], position, False
        character = np.int64(0)
        if code == WIDE:
            character, position = decode(data, position, stop)
            blank = _is_white_space(character)
        else:
            position += 1
            blank = code == BLANK
        if blank:
            inside = False
            if squeezed:
                pending = length > 0
            else:
                for i in range(start, position):
                    buffer[length] = data[i]
                    length += 1
            continue
        if not inside:
            words += 1
            inside = True
        if code == DROPPED:
            continue
        if code < BLANK:
            if pending:
                buffer[length] = SPACE
                length, pending = length + 1, False
            buffer[length] = code
            length += 1
            continue
        entry = rules.table[character] if character < CODE_POINTS else np.uint32(0)
        if rules.flags & UNPUNCTUATED and not entry & _IN_WORD:
            continue
        if pending:
            buffer[length] = SPACE
            length, pending = length + 1, False
        if rules.flags & LOWERED and entry & _IN_WORD:
            length = _encode(np.int64(entry & CHARACTER), buffer, length)
            continue
        for i in range(start, position):
            buffer[length] = data[i]
            length += 1
    return _State(length, words, pending, inside)


@kernel
def _line_end(data: np.ndarray, position: int, stop: int) -> int:
    """Return the position of the next line break, or `stop`."""
    for octet in data[position:stop]:
        if octet == NEWLINE:
            return position
        position += 1
    return stop


@kernel
def _write(
    buffer: np.ndarray, state: _State, rules: Rules, text: int, span: tuple[int, int], found: Passages, count: int
) -> int:
    """Hash a passage of a text and write it to `found[count]`, unless it is too short. Return the new count."""
    length = state.length
    if length < rules.min_bytes or state.words < rules.min_words:
        return count
    for i in range(length, (length + BLOCK - 1) // BLOCK * BLOCK):
        buffer[i] = 0
    found.texts[count] = text
    found.starts[count], found.stops[count] = span[0], span[1]
    high, low = hash_128(buffer.view(np.uint64), length, rules.seed)
    found.high[count], found.low[count] = high, low
    return count + 1


@kernel
def find_passages(
    data: np.ndarray, offsets: np.ndarray, rules: Rules, buffer: np.ndarray, text: int, position: int, found: Passages
) -> tuple[int, int, int]:
    """Write the passages of texts to `found` until it is full or the texts end.

    text, position: where to begin; (0, 0) in the first call. buffer: uint8, room for a normalized passage. Returns the
    number of passages, and where to begin in the next call; `text` is the number of texts if there are no more.
    """
    count, room = 0, len(found.texts)
    while text < len(offsets) - 1:
        base, stop = offsets[text], offsets[text + 1]
        line, begins, gap = base + position, -1, False
        state = _State(0, 0, False, False)
        while line < stop:
            end = _line_end(data, line, stop)
            following = min(end + 1, stop)
            if _is_blank(data, line, end, rules.codes):
                gap, line = True, following
                continue
            if begins >= 0 and gap:  # the next paragraph begins
                count = _write(buffer, state, rules, text, (begins - base, line - base), found, count)
                begins, state = -1, _State(0, 0, False, False)
                if count == room:
                    return count, text, line - base
            if begins < 0:
                begins = line
            elif rules.flags & SQUEEZED:
                state = _State(state.length, state.words, state.length > 0, False)
            else:
                buffer[state.length] = NEWLINE
                state = _State(state.length + 1, state.words, False, False)
            state = _append_line(data, line, end, rules, buffer, state)
            gap, line = False, following
            if not rules.paragraphs:
                count = _write(buffer, state, rules, text, (begins - base, line - base), found, count)
                begins, state = -1, _State(0, 0, False, False)
                if count == room:
                    return count, text, line - base
        if begins >= 0:
            count = _write(buffer, state, rules, text, (begins - base, stop - base), found, count)
        text, position = text + 1, 0
        if count == room:
            return count, text, 0
    return count, text, 0
