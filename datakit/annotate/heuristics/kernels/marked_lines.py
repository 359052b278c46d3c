"""Counts what the lines of `str.splitlines` tell: bullets and ellipses for Gopher, and C4's checks.

All Unicode line breaks end a line, a carriage return and a line feed together are one break, and a break at the end of
the text begins no further line.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

import numpy as np

from datakit.annotate.heuristics.kernels import c4, characters, counts, words
from datakit.annotate.heuristics.kernels.c4 import count_c4_line
from datakit.annotate.heuristics.kernels.characters import is_at
from datakit.annotate.heuristics.kernels.counts import BULLET_LINES, ELLIPSIS_LINES, LINES
from datakit.annotate.heuristics.kernels.words import Marks, Words
from datakit.text.numba_cache import cached_njit

LINE_FEED, RETURN = 10, 13
BULLET, DOTS, ELLIPSIS = (np.frombuffer(piece.encode(), np.uint8) for piece in ("•", "...", "…"))

kernel = cached_njit(c4, characters, counts, words)


@kernel
def count_marked_lines(
    data: np.ndarray,
    table: np.ndarray,
    words: Words,
    marks: Marks,
    sizes: tuple[int, int, int],
    limits: tuple[int, int],
    plain: bool,
    row: np.ndarray,
) -> None:
    """Count the lines of a document. sizes: the numbers of words, line breaks and places. limits: the fewest words of a
    line and the longest word that C4 keeps. plain: whitespace separates all words, and none is longer than this limit.
    """
    count, breaks, places = sizes
    word, place, line = 0, 0, 0
    for number in range(breaks + 1):
        end, until = (marks.breaks[number], marks.words[number]) if number < breaks else (len(data), count)
        if number == breaks and line >= len(data):
            break
        if number and number < breaks and end == line and data[end] == LINE_FEED and data[end - 1] == RETURN:
            line = end + 1
            continue
        first, kinds, word = word, 0, until
        while place < places and marks.places[place] < end:
            kinds |= 1 << marks.kinds[place]
            place += 1
        row[LINES] += 1
        if word > first:
            _count_marks(data, words.starts[first], words.stops[word - 1], row)
            count_c4_line(data, table, words, first, word, kinds, limits, plain, row)
        line = end + _width(data, end) if number < breaks else len(data)


@kernel
def _width(data: np.ndarray, position: int) -> int:
    """Return the number of bytes of a line break."""
    return 1 if data[position] < 0x80 else 2 if data[position] < 0xE0 else 3


@kernel
def _count_marks(data: np.ndarray, start: int, stop: int, row: np.ndarray) -> None:
    """Count the bullet or ellipsis of the line `data[start:stop]`, which is without whitespace at its ends."""
    row[BULLET_LINES] += data[start] == ord("-") or is_at(data, start, stop, start, BULLET)
    dots = is_at(data, start, stop, stop - len(DOTS), DOTS)
    ends = dots or is_at(data, start, stop, stop - len(ELLIPSIS), ELLIPSIS)
    row[ELLIPSIS_LINES] += ends
