"""Finds the words into which the regular expressions of GPT-2 and of the cl100k kind split a text.

The kernels do what the expressions (safe_cuts.py) say, alternative by alternative, without a regular-expression engine.
At each place exactly one alternative applies, and which one follows from the class of the next one or two characters.
Only for white space the end of the run decides, too: the last character of a run goes with the word after it, if it
can.

Runs of ASCII letters are found eight bytes at a time, without a branch for each byte. All numbers are uint64: `text`
and `classes` are the addresses of the text's bytes and of the table of classes, `at` and `stop` are positions in the
text, and `readable` is the number of bytes that may be read from `text` on.
"""

# ruff: noqa: PLR0917, PLR1714, SIM109 - kernels take their arguments by position, and `in` would build a tuple

from __future__ import annotations

import numpy as np
from numba import njit

from datakit.tokenize.encoders.bpe import character_tables as tables
from datakit.tokenize.encoders.bpe.memory_access import byte, text64, trailing_zeros

GPT2, CL100K, WHOLE = (np.uint64(number) for number in range(3))  # the families of expressions; WHOLE does not split
ANY_NUMBER = np.uint64(1 << 62)  # of digits in a word
UNDECIDED = np.uint64(0)  # returned for the end of a word that the kernels leave to another encoder
_CODE_POINTS = np.uint64(tables.CODE_POINTS)
_OTHER, _LETTER, _NUMBER, _WHITE = (
    np.uint64(kind) for kind in (tables.OTHER, tables.LETTER, tables.NUMBER, tables.WHITE)
)
_ASCII_END = np.uint64(128)
_ZERO, _ONE, _TWO, _THREE, _SIX, _EIGHT = (np.uint64(number) for number in (0, 1, 2, 3, 6, 8))
_SPACE, _QUOTE, _LINE_FEED, _RETURN = (np.uint64(ord(character)) for character in " '\n\r")
_S, _T, _M, _D, _L, _V, _E, _R = (np.uint64(ord(letter)) for letter in "stmdlver")
_FOLD = np.uint64(0x20)  # maps an ASCII capital letter to its small letter, and no other byte to a letter
_LONG_S_1, _LONG_S_2 = np.uint64(0xC5), np.uint64(0xBF)  # U+017F, which is an "s" if case is ignored
_THREE_BYTES, _FOUR_BYTES = np.uint64(0xE0), np.uint64(0xF0)  # the first bytes of characters of three and four bytes
_LEAD, _CONTINUATION = np.uint64(0x7F), np.uint64(0x3F)
_HIGH = np.uint64(0x8080808080808080)
_LOW = np.uint64(0x7F7F7F7F7F7F7F7F)
_LOWER = np.uint64(0x2020202020202020)
_BELOW_A = np.uint64(0x1F1F1F1F1F1F1F1F)  # 0x80 - ord("a"), in each byte
_BEYOND_Z = np.uint64(0x0505050505050505)  # 0x7F - ord("z"), in each byte

kernel = njit(nogil=True)
hot = njit(nogil=True, forceinline=True)


@kernel
def decode(text: np.uint64, at: np.uint64, stop: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return the non-ASCII character at `at` (_CODE_POINTS if it is truncated) and the position after it."""
    first = byte(text, at)
    size = _TWO + np.uint64(first >= _THREE_BYTES) + np.uint64(first >= _FOUR_BYTES)
    if at + size > stop:
        return _CODE_POINTS, stop
    character = (first & (_LEAD >> size)) << _SIX | (byte(text, at + _ONE) & _CONTINUATION)
    if size > _TWO:
        character = character << _SIX | (byte(text, at + _TWO) & _CONTINUATION)
    if size > _THREE:
        character = character << _SIX | (byte(text, at + _THREE) & _CONTINUATION)
    return min(character, _CODE_POINTS), at + size


@hot
def classify(text: np.uint64, at: np.uint64, stop: np.uint64, classes: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return the class of the character at `at`, and the position after it. A truncated character counts as OTHER."""
    first = byte(text, at)
    if first < _ASCII_END:
        return byte(classes, first), at + _ONE
    character, after = decode(text, at, stop)
    return (byte(classes, character) if character < _CODE_POINTS else _OTHER), after


@hot
def letters_end(text: np.uint64, at: np.uint64, stop: np.uint64, classes: np.uint64, readable: np.uint64) -> np.uint64:
    """Return the end of the run of letters that continues at `at`."""
    while at < stop:
        if at + _EIGHT <= readable:
            # In each byte, the high bit is set if the byte is no ASCII letter. No addition carries into the next byte.
            value = text64(text, at)
            lower = (value | _LOWER) & _LOW
            others = (value | ~(lower + _BELOW_A) | (lower + _BEYOND_Z)) & _HIGH
            at += trailing_zeros(others) >> _THREE
            if others == _ZERO:
                continue
            if at >= stop:
                return stop
            if byte(text, at) < _ASCII_END:
                return at
        kind, after = classify(text, at, stop, classes)
        if kind != _LETTER:
            return at
        at = after
        while at < stop and byte(text, at) >= _ASCII_END:
            kind, after = classify(text, at, stop, classes)
            if kind != _LETTER:
                return at
            at = after
    return stop


@kernel
def run_end(
    text: np.uint64, at: np.uint64, stop: np.uint64, classes: np.uint64, kind: np.uint64, most: np.uint64
) -> np.uint64:
    """Return the end of the run of characters of a class that continues at `at`, of `most` characters at most."""
    while at < stop and most > _ZERO:
        found, after = classify(text, at, stop, classes)
        if found != kind:
            return at
        at = after
        most -= _ONE
    return at


@kernel
def white_end(text: np.uint64, at: np.uint64, stop: np.uint64, classes: np.uint64, lines: bool) -> np.uint64:
    """Return the end of the word that begins with the white space at `at`. lines: whether a word ends after the last
    line break of a run.
    """
    first, last, end = _ZERO, at, at  # the end of the first character, the last character, and the end of the run
    broken = _ZERO
    while end < stop:
        kind, after = classify(text, end, stop, classes)
        if kind != _WHITE:
            break
        if byte(text, end) == _LINE_FEED or byte(text, end) == _RETURN:
            broken = after
        if first == _ZERO:
            first = after
        last, end = end, after
    if lines and broken > _ZERO:
        return broken
    return end if end == stop or end == first else last


@hot
def contraction_end(text: np.uint64, at: np.uint64, stop: np.uint64, fold: np.uint64) -> np.uint64:
    """Return the end of the contraction that begins with the apostrophe at `at`, or `at` if there is none. fold: _FOLD
    to ignore the case of ASCII letters, otherwise 0.
    """
    if at + _ONE >= stop:
        return at
    one = byte(text, at + _ONE) | fold
    if one == _S or one == _T or one == _M or one == _D:
        return at + _TWO
    if at + _TWO >= stop:
        return at
    two = byte(text, at + _TWO) | fold
    if (one == _L and two == _L) or (two == _E and (one == _R or one == _V)):
        return at + _THREE
    return at


@hot
def gpt2_end(text: np.uint64, at: np.uint64, stop: np.uint64, classes: np.uint64, readable: np.uint64) -> np.uint64:
    """Return the end of the word at `at`, as GPT-2's expression splits the text that ends at `stop`."""
    start, first = at, byte(text, at)
    if first == _QUOTE:
        end = contraction_end(text, at, stop, _ZERO)
        if end > at:
            return end
    if first == _SPACE and at + _ONE < stop:
        at += _ONE
    kind, after = classify(text, at, stop, classes)
    if kind == _LETTER:
        return letters_end(text, after, stop, classes, readable)
    if kind != _WHITE:
        return run_end(text, after, stop, classes, kind, ANY_NUMBER)
    return white_end(text, start, stop, classes, False)


@kernel
def cl100k_end(
    text: np.uint64, at: np.uint64, stop: np.uint64, classes: np.uint64, readable: np.uint64, digits: np.uint64
) -> np.uint64:
    """Return the end of the word at `at`, as an expression of the cl100k kind splits the text that ends at `stop`;
    UNDECIDED for an apostrophe before U+017F. digits: the largest number of digits in a word.
    """
    first = byte(text, at)
    if first == _QUOTE:
        end = contraction_end(text, at, stop, _FOLD)
        if end > at:
            return end
        if at + _TWO < stop and byte(text, at + _ONE) == _LONG_S_1 and byte(text, at + _TWO) == _LONG_S_2:
            return UNDECIDED
    kind, after = classify(text, at, stop, classes)
    if kind == _LETTER:
        return letters_end(text, after, stop, classes, readable)
    if kind == _NUMBER:
        return run_end(text, after, stop, classes, _NUMBER, digits - _ONE)
    if after < stop and first != _LINE_FEED and first != _RETURN:
        following, beyond = classify(text, after, stop, classes)
        if following == _LETTER:
            return letters_end(text, beyond, stop, classes, readable)
        if first == _SPACE and following == _OTHER:
            kind, after = following, beyond
    if kind == _WHITE:
        return white_end(text, at, stop, classes, True)
    end = run_end(text, after, stop, classes, _OTHER, ANY_NUMBER)
    while end < stop and (byte(text, end) == _LINE_FEED or byte(text, end) == _RETURN):
        end += _ONE
    return end
