"""Compiles the pass that takes the texts out of lines of JSON. It reads the members before the text byte by byte, and
the text with vector instructions (`unescape.py`). For input that they cannot handle, the functions that look for an end
return -1; a parser then reads the whole chunk.
"""

from __future__ import annotations

import numpy as np

from datakit.normalize import kernels
from datakit.normalize.readers.taken_texts import unescape as strings
from datakit.normalize.readers.taken_texts.unescape import BACKSLASH, QUOTE, UNREAD, unescape
from datakit.text.numba_cache import Decorator, cached_njit

NEWLINE, COMMA, COLON = 10, 44, 58
OPEN, CLOSE, BRACKET, CLOSE_BRACKET = 123, 125, 91, 93

kernel: Decorator = cached_njit(kernels, strings)


@kernel
def _spaces(data: np.ndarray, i: int) -> int:
    """Return the position of the first byte from `i` on that is not white space within a line."""
    while i < len(data) and data[i] in (32, 9, 13):
        i += 1
    return i


@kernel
def _string_end(data: np.ndarray, i: int) -> int:
    """Return the position after the quote that ends the string whose content begins at `i`."""
    while i < len(data):
        octet = data[i]
        if octet == QUOTE:
            return i + 1
        if octet < 32:
            return UNREAD
        if octet == BACKSLASH:  # the byte after it must not be a line end, which ends the record
            i += 1
            if i < len(data) and data[i] < 32:
                return UNREAD
        i += 1
    return UNREAD


@kernel
def _value_end(data: np.ndarray, i: int) -> int:
    """Return the position after the value that begins at `i`."""
    depth = 0
    while i < len(data):
        octet = data[i]
        if octet == QUOTE:
            i = _string_end(data, i + 1)
            if i < 0 or depth == 0:
                return i
            continue
        if octet == NEWLINE:
            return UNREAD
        if octet in (OPEN, BRACKET):
            depth += 1
        elif octet in (CLOSE, CLOSE_BRACKET):
            if depth <= 1:
                return i + depth
            depth -= 1
        elif octet == COMMA and depth == 0:
            return i
        i += 1
    return UNREAD


@kernel
def _text_start(data: np.ndarray, i: int, key: np.ndarray) -> int:
    """Return where the content of the string begins that is the value of the member `key` (with its quotes) of the
    object whose members begin at `i`.
    """
    while True:
        i = _spaces(data, i)
        if i >= len(data) or data[i] != QUOTE:
            return UNREAD
        start = i
        i = _string_end(data, i + 1)
        if i < 0:
            return UNREAD
        wanted = i - start == len(key)
        for k in range(len(key)):
            wanted = wanted and data[start + k] == key[k]
        i = _spaces(data, i)
        if i >= len(data) or data[i] != COLON:
            return UNREAD
        i = _spaces(data, i + 1)
        if wanted:
            return i + 1 if i < len(data) and data[i] == QUOTE else UNREAD
        i = _value_end(data, i)
        if i < 0:
            return UNREAD
        i = _spaces(data, i)
        if i >= len(data) or data[i] != COMMA:
            return UNREAD
        i += 1


@kernel
def _append(data: np.ndarray, start: int, stop: int, output: np.ndarray, r: int) -> int:
    """Write data[start:stop] to output[r:]; return the position after it."""
    for octet in data[start:stop]:
        output[r] = octet
        r += 1
    return r


@kernel
def _line_end(data: np.ndarray, i: int) -> int:
    """Return the position of the first line end from `i` on, or the end of the chunk."""
    while i < len(data) and data[i] != NEWLINE:
        i += 1
    return i


@kernel
def take_texts(
    data: np.ndarray, key: np.ndarray, deepest: int, outputs: tuple[np.ndarray, np.ndarray], places: np.ndarray
) -> tuple[int, int, int]:
    """Write every nonblank line, with an empty string in place of its text, to the first of the outputs, and its text
    to the second. Return the number of such lines, or -1; the number of line ends; and the size of the first output.

    key: the name of the member with the text, in quotes. deepest: the maximum depth of nesting. places: int64
    [3, lines], where each line starts and ends, and where its text ends in the output.
    """
    rest, texts = outputs
    count = line_ends = i = r = t = 0
    while True:
        i = _spaces(data, i)
        if i == len(data):
            return count, line_ends, r
        if data[i] == NEWLINE:
            i += 1
            line_ends += 1
            continue
        if data[i] != OPEN or count == places.shape[1]:
            return UNREAD, 0, 0
        start, first = i, r
        text = _text_start(data, i + 1, key)
        if text < 0:
            return UNREAD, 0, 0
        quote, t = unescape(data, text, texts, t)
        if quote < 0:
            return UNREAD, 0, 0
        end = i = _line_end(data, quote)
        while data[end - 1] in (32, 9, 13):
            end -= 1
        r = _append(data, quote, end, rest, _append(data, start, text, rest, r))
        if data[end - 1] != CLOSE or _is_deep(rest, first, r, deepest):
            return UNREAD, 0, 0
        rest[r] = NEWLINE
        r += 1
        places[0, count], places[1, count], places[2, count] = start, end, t
        count += 1


@kernel
def _is_deep(data: np.ndarray, start: int, end: int, deepest: int) -> bool:
    """Return whether brackets in the line data[start:end] are nested more deeply than `deepest`."""
    opened = 0
    for octet in data[start:end]:
        opened += (octet == OPEN) | (octet == BRACKET)
    return bool(opened > deepest and kernels.nesting(data, start, end) > deepest)
