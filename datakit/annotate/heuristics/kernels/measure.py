"""Counts everything in the documents of a batch. The buffers are allocated once per batch, for its largest document.

Buffers are larger than the texts that they serve: up to about 50 bytes per byte of the largest document, of which a
usual text touches a fifth. Time is linear in the size of a document, whatever it contains.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.annotate.heuristics.kernels import (
    characters,
    counts,
    duplicates,
    lines,
    marked_lines,
    ngrams,
    spans,
    stop_words,
    words,
)
from datakit.annotate.heuristics.kernels.characters import flags_table
from datakit.annotate.heuristics.kernels.counts import COUNT
from datakit.annotate.heuristics.kernels.duplicates import count_duplicate_lines, count_duplicate_paragraphs
from datakit.annotate.heuristics.kernels.lines import Lines, find_lines
from datakit.annotate.heuristics.kernels.marked_lines import count_marked_lines
from datakit.annotate.heuristics.kernels.ngrams import Grams, count_ngrams
from datakit.annotate.heuristics.kernels.spans import Numbers, number_spans, slots_for
from datakit.annotate.heuristics.kernels.stop_words import StopWords, count_stop_words
from datakit.annotate.heuristics.kernels.words import Marks, Words, scan
from datakit.text.numba_cache import cached_njit

kernel = cached_njit(characters, counts, duplicates, lines, marked_lines, ngrams, spans, stop_words, words)


class Limits(NamedTuple):
    """Limits of what counts line by line. short_line: the most characters of a short line. fewest_words, longest_word:
    the fewest words of a line that C4 keeps, and the most characters of such a word.
    """

    short_line: int
    fewest_words: int
    longest_word: int


class Buffers(NamedTuple):
    """Room for the parts of one document."""

    words: Words
    marks: Marks
    lines: Lines
    numbers: Numbers
    grams: Grams


def new_buffers(size: int) -> Buffers:
    """Return room for documents of `size` bytes. A word takes at least two bytes, with the whitespace behind it."""
    breaks, pieces = size + 1, size // 2 + 2
    return Buffers(
        Words(*(np.empty(pieces, kind) for kind in (np.int64, np.int64, np.int64, np.int16, np.uint64))),
        Marks(*(np.empty(breaks, kind) for kind in (np.int64, np.int64, np.int64, np.uint8))),
        Lines(*(np.empty(pieces, kind) for kind in (np.int64, np.int64, np.uint64, np.bool_))),
        Numbers(*(np.empty(size, np.int32) for size in (pieces, pieces, pieces, slots_for(pieces)))),
        Grams(*(np.empty(pieces + 1, kind) for kind in (np.int32, np.int32, np.uint64, np.int64))),
    )


def measure(data: np.ndarray, offsets: np.ndarray, limits: Limits, stop_words: StopWords) -> np.ndarray:
    """Return the counts of N documents, int64 [N, COUNT + 2 * L]: those of `counts.py`, and for each list of stop words
    the number of different ones and of their occurrences. data, offsets: see `string_buffers`.
    """
    documents = len(offsets) - 1
    found = np.zeros((documents, COUNT + 2 * stop_words.members.shape[1]), np.int64)
    if documents:
        _measure(data, offsets, flags_table(), limits, stop_words, new_buffers(int(np.diff(offsets).max())), found)
    return found


@kernel
def _measure(
    data: np.ndarray,
    offsets: np.ndarray,
    table: np.ndarray,
    limits: Limits,
    stop_words: StopWords,
    buffers: Buffers,
    found: np.ndarray,
) -> None:
    """Write one row of counts per document."""
    words, marks, lines, numbers = buffers.words, buffers.marks, buffers.lines, buffers.numbers
    for document in range(len(offsets) - 1):
        start, stop, row = offsets[document], offsets[document + 1], found[document]
        sizes = scan(data, start, stop, table, words, marks, row)
        count = sizes[0]
        count_marked_lines(
            data, start, stop, table, words, marks, sizes, (limits.fewest_words, limits.longest_word), row
        )
        distinct = number_spans(data, words.starts, words.stops, words.hashes, count, numbers)
        count_stop_words(data, words, distinct, numbers, stop_words, row[COUNT:])
        count_ngrams(words, count, numbers, buffers.grams, row)
        filled = find_lines(data, start, stop, table, words, marks, sizes, limits.short_line, lines, row)
        count_duplicate_lines(data, lines, filled, numbers, row)
        if count:
            edges = words.starts[0], words.stops[count - 1]
            count_duplicate_paragraphs(data, edges[0], edges[1], lines, filled, numbers, row)
