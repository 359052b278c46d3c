"""Counts duplicate lines and paragraphs: those that occurred before in the same document, byte by byte.

Paragraphs are what two or more newlines in a row separate in the text without the whitespace at its ends.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

import numpy as np

from datakit.annotate.heuristics.kernels import counts, lines, spans, words
from datakit.annotate.heuristics.kernels.counts import (
    DUPLICATE_LINE_CHARACTERS,
    DUPLICATE_LINES,
    DUPLICATE_NONBLANK_CHARACTERS,
    DUPLICATE_PARAGRAPH_CHARACTERS,
    DUPLICATE_PARAGRAPHS,
    PARAGRAPHS,
)
from datakit.annotate.heuristics.kernels.lines import Lines
from datakit.annotate.heuristics.kernels.spans import Numbers, join_keys, key_of, number_spans
from datakit.text.numba_cache import cached_njit

kernel = cached_njit(counts, lines, spans, words)


@kernel
def length_of(data: np.ndarray, start: int, stop: int) -> int:
    """Return the number of characters in some bytes."""
    length = 0
    for position in range(start, stop):
        length += data[position] & 0xC0 != 0x80
    return length


@kernel
def count_duplicate_lines(data: np.ndarray, lines: Lines, count: int, numbers: Numbers, row: np.ndarray) -> int:
    """Count the duplicates among `count` filled lines. Return the slots that were looked at."""
    distinct, steps = number_spans(data, lines.starts, lines.stops, lines.keys, count, numbers)
    for line in range(count if distinct < count else 0):
        if numbers.firsts[numbers.ids[line]] != line:
            length = length_of(data, lines.starts[line], lines.stops[line])
            row[DUPLICATE_LINES] += 1
            row[DUPLICATE_LINE_CHARACTERS] += length
            if not lines.blank[line]:
                row[DUPLICATE_NONBLANK_CHARACTERS] += length
    return steps


@kernel
def count_duplicate_paragraphs(
    data: np.ndarray,
    windows: np.ndarray,
    edges: tuple[int, int],
    lines: Lines,
    count: int,
    numbers: Numbers,
    row: np.ndarray,
) -> int:
    """Count the duplicates among the paragraphs between `edges`, where the text without the whitespace at its ends
    begins and ends. The lines are replaced by the paragraphs. Return the slots that were looked at.
    """
    paragraphs = _join(data, windows, edges, lines, count)
    row[PARAGRAPHS] = paragraphs
    distinct, steps = number_spans(data, lines.starts, lines.stops, lines.keys, paragraphs, numbers)
    for one in range(paragraphs if distinct < paragraphs else 0):
        if numbers.firsts[numbers.ids[one]] != one:
            row[DUPLICATE_PARAGRAPHS] += 1
            row[DUPLICATE_PARAGRAPH_CHARACTERS] += length_of(data, lines.starts[one], lines.stops[one])
    return steps


@kernel
def _join(data: np.ndarray, windows: np.ndarray, edges: tuple[int, int], lines: Lines, count: int) -> int:
    """Replace lines by the paragraphs that they form, and return the number of paragraphs."""
    paragraphs = 0
    for line in range(count):
        first, last = max(lines.starts[line], edges[0]), min(lines.stops[line], edges[1])
        if first >= last:
            continue
        whole = first == lines.starts[line] and last == lines.stops[line]
        key = lines.keys[line] if whole else key_of(data, windows, first, last)
        if paragraphs and lines.stops[paragraphs - 1] + 1 == first:
            lines.stops[paragraphs - 1] = last
            lines.keys[paragraphs - 1] = join_keys(lines.keys[paragraphs - 1], key)
        else:
            lines.starts[paragraphs], lines.stops[paragraphs], lines.keys[paragraphs] = first, last, key
            paragraphs += 1
    return paragraphs
