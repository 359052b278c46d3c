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
from datakit.annotate.heuristics.kernels.characters import byte_table, flags_table
from datakit.annotate.heuristics.kernels.counts import COUNT, LONGEST_WORD, STEPS
from datakit.annotate.heuristics.kernels.duplicates import count_duplicate_lines, count_duplicate_paragraphs
from datakit.annotate.heuristics.kernels.lines import Lines, find_lines
from datakit.annotate.heuristics.kernels.marked_lines import count_marked_lines
from datakit.annotate.heuristics.kernels.ngrams import Grams, count_ngrams
from datakit.annotate.heuristics.kernels.spans import Numbers, number_spans, slots_for, windows_of
from datakit.annotate.heuristics.kernels.stop_words import StopWords, count_stop_words
from datakit.annotate.heuristics.kernels.words import GLUED, Marks, Tables, Words, count_words, scan
from datakit.errors import ColumnError
from datakit.text.numba_cache import cached_njit

LARGEST = 2**31 - 1  # bytes of a text, because places in it have 32 bits

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
    slots = slots_for(pieces)
    return Buffers(
        Words(*(np.empty(pieces, kind) for kind in (np.int32, np.int32, np.int32, np.int16, np.uint64))),
        Marks(*(np.empty(breaks, kind) for kind in (np.int32, np.int32, np.int32, np.int32, np.uint8))),
        Lines(*(np.empty(pieces, kind) for kind in (np.int32, np.int32, np.uint64, np.bool_))),
        Numbers(
            *(np.empty(pieces, np.int32) for _ in range(3)), *(np.empty(slots, kind) for kind in (np.int32, np.uint64))
        ),
        Grams(*(np.empty(pieces + 1, kind) for kind in (np.int32, np.int32, np.uint64, np.int32))),
    )


def measure(data: np.ndarray, offsets: np.ndarray, limits: Limits, stop_words: StopWords) -> np.ndarray:
    """Return the counts of N documents, int64 [N, COUNT + 2 * L]: those of `counts.py`, and for each list of stop words
    the number of different ones and of their occurrences. data, offsets: see `string_buffers`. Raises ColumnError for a
    text of more than 2 GiB.
    """
    documents = len(offsets) - 1
    found = np.zeros((documents, COUNT + 2 * stop_words.members.shape[1]), np.int64)
    if documents:
        largest = int(np.diff(offsets).max())
        if largest > LARGEST:
            raise ColumnError(f"a text has {largest:,} bytes; heuristics need texts of at most {LARGEST:,}")
        buffers = new_buffers(largest)
        _measure(
            data, windows_of(data), offsets, Tables(flags_table(), byte_table()), limits, stop_words, buffers, found
        )
    return found


@kernel
def _measure(
    data: np.ndarray,
    windows: np.ndarray,
    offsets: np.ndarray,
    tables: Tables,
    limits: Limits,
    stop_words: StopWords,
    buffers: Buffers,
    found: np.ndarray,
) -> None:
    """Write one row of counts per document."""
    words, marks, lines, numbers = buffers.words, buffers.marks, buffers.lines, buffers.numbers
    table, c4_limits = tables.characters, (limits.fewest_words, limits.longest_word)
    for document in range(len(offsets) - 1):
        start, stop, row = offsets[document], offsets[document + 1], found[document]
        text, views = data[start:stop], windows[start:stop]
        sizes = scan(text, views, tables, words, marks, row)
        count = sizes[0]
        flags = count_words(words, count, row)
        plain = not flags & GLUED and row[LONGEST_WORD] <= limits.longest_word
        count_marked_lines(text, table, words, marks, sizes, c4_limits, plain, row)
        _, row[STEPS] = number_spans(text, words.starts, words.stops, words.keys, count, numbers)
        count_stop_words(text, words, count, numbers, stop_words, row[COUNT:])
        row[STEPS] += count_ngrams(words, count, numbers, buffers.grams, row)
        filled = find_lines(text, views, table, words, marks, sizes, limits.short_line, lines, row)
        row[STEPS] += count_duplicate_lines(text, lines, filled, numbers, row)
        if count:
            edges = np.int64(words.starts[0]), np.int64(words.stops[count - 1])
            row[STEPS] += count_duplicate_paragraphs(text, views, edges, lines, filled, numbers, row)
