"""Counts what the lines between newlines (U+000A) of a document tell, for Gopher's repetitions, FineWeb and mC4.

A line is filled unless it is empty, and blank unless it has a word. Other line breaks are part of a line; the lines
that they end, too, are in `marked_lines.py`.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.annotate.heuristics.kernels import characters, counts, spans, words
from datakit.annotate.heuristics.kernels.characters import TERMINAL, before, decode
from datakit.annotate.heuristics.kernels.counts import (
    CHARACTERS,
    FILLED_LINES,
    LONGEST_LINE,
    NEWLINES,
    NONBLANK_LINES,
    SECOND_LINE,
    SHORT_LINES,
    TERMINAL_LINES,
    THIRD_LINE,
)
from datakit.annotate.heuristics.kernels.spans import key_of
from datakit.annotate.heuristics.kernels.words import ENDING, Marks, Words
from datakit.text.numba_cache import cached_njit

NEWLINE = 10

kernel = cached_njit(characters, counts, spans, words)


class Lines(NamedTuple):
    """The filled lines of a document. starts, stops: bytes, int32. keys: see `spans.py`, uint64. blank: bool."""

    starts: np.ndarray
    stops: np.ndarray
    keys: np.ndarray
    blank: np.ndarray


@kernel
def find_lines(
    data: np.ndarray,
    windows: np.ndarray,
    table: np.ndarray,
    words: Words,
    marks: Marks,
    sizes: tuple[int, int, int],
    short: int,
    lines: Lines,
    row: np.ndarray,
) -> int:
    """Write the filled lines of a document, count its lines, and return the number of filled lines. sizes: the numbers
    of words, line breaks and places. short: the most characters of a short line.
    """
    count, breaks, _ = sizes
    filled, word, line, character = 0, 0, 0, 0
    for number in range(breaks + 1):
        end, characters, until = len(data), row[CHARACTERS], count
        if number < breaks:
            end, characters, until = marks.breaks[number], marks.characters[number], marks.words[number]
            if data[end] != NEWLINE:
                continue
            row[NEWLINES] += 1
        if end > line:
            lines.starts[filled], lines.stops[filled] = line, end
            lines.keys[filled], lines.blank[filled] = key_of(data, windows, line, end), until == word
            filled += 1
        _rank(characters - character, row)
        if until > word:
            row[NONBLANK_LINES] += 1
            row[SHORT_LINES] += characters - character <= short
            if words.flags[until - 1] & ENDING:
                last, _ = decode(data, before(data, words.stops[until - 1]))
                row[TERMINAL_LINES] += table[last] & TERMINAL != 0
        word, line, character = until, end + 1, characters + 1
    row[FILLED_LINES] = filled
    return filled


@kernel
def _rank(length: int, row: np.ndarray) -> None:
    """Keep the lengths of the three longest lines."""
    if length > row[LONGEST_LINE]:
        row[THIRD_LINE], row[SECOND_LINE], row[LONGEST_LINE] = row[SECOND_LINE], row[LONGEST_LINE], length
    elif length > row[SECOND_LINE]:
        row[THIRD_LINE], row[SECOND_LINE] = row[SECOND_LINE], length
    elif length > row[THIRD_LINE]:
        row[THIRD_LINE] = length
