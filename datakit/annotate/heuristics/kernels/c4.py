"""Counts the lines of a document by what C4 does with them: keep, drop, or drop the document.

The checks and their order are those of C4's own code. Citations (`[1]`, `[edit]`, `[citation needed]`) are ignored at
the end of a line. Lines without a word are not counted.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

import numpy as np

from datakit.annotate.heuristics.kernels import characters, counts, phrases, words
from datakit.annotate.heuristics.kernels.characters import CLOSER, TERMINAL, before, decode, is_at
from datakit.annotate.heuristics.kernels.counts import (
    C4_BRACE_LINES,
    C4_JAVASCRIPT_LINES,
    C4_KEPT_LINES,
    C4_LONG_WORD_LINES,
    C4_LOREM_IPSUM_LINES,
    C4_POLICY_LINES,
    C4_SENTENCES,
    C4_SHORT_LINES,
    C4_UNTERMINATED_LINES,
)
from datakit.annotate.heuristics.kernels.phrases import BRACE, JAVASCRIPT, LOREM_IPSUM, POLICY
from datakit.annotate.heuristics.kernels.words import ENDING, GLUED, Words
from datakit.text.numba_cache import cached_njit

EDIT, NEEDED = (np.frombuffer(piece, np.uint8) for piece in (b"[edit]", b"[citation needed]"))
ELLIPSIS_DOTS = 3

kernel = cached_njit(characters, counts, phrases, words)


@kernel
def count_c4_line(
    data: np.ndarray,
    table: np.ndarray,
    words: Words,
    first: int,
    last: int,
    kinds: int,
    limits: tuple[int, int],
    plain: bool,
    row: np.ndarray,
) -> None:
    """Count a line, of which the words are `first` to `last` - 1. kinds: the kinds of its phrases, as bits. limits: the
    words that a line must have, and the characters that a word may have. plain: whitespace separates all words, and
    none has more characters.
    """
    runs, length = (last - first, 0) if plain else _runs(words, first, last)
    if length > limits[1]:
        row[C4_LONG_WORD_LINES] += 1
    elif not _terminated(data, words.starts[first], words.stops[last - 1]):
        row[C4_UNTERMINATED_LINES] += 1
    elif runs < limits[0]:
        row[C4_SHORT_LINES] += 1
    elif kinds & (1 << LOREM_IPSUM):
        row[C4_LOREM_IPSUM_LINES] += 1
    elif kinds & (1 << JAVASCRIPT):
        row[C4_JAVASCRIPT_LINES] += 1
    elif kinds & (1 << BRACE):
        row[C4_BRACE_LINES] += 1
    elif kinds & (1 << POLICY):
        row[C4_POLICY_LINES] += 1
    else:
        row[C4_KEPT_LINES] += 1
        row[C4_SENTENCES] += _sentences(data, table, words, first, last)


@kernel
def _runs(words: Words, first: int, last: int) -> tuple[int, int]:
    """Return how many pieces whitespace separates, and the characters of the longest one."""
    runs, length, longest = 0, 0, 0
    for word in range(first, last):
        if not words.flags[word] & GLUED:
            runs, length = runs + 1, 0
        length += words.lengths[word]
        longest = max(longest, length)
    return runs, longest


@kernel
def without_citations(data: np.ndarray, start: int, stop: int) -> int:
    """Return where the citations at the end of `data[start:stop]` begin."""
    while stop > start and data[stop - 1] == ord("]"):
        opening = stop - 2
        while opening >= start and ord("0") <= data[opening] <= ord("9"):
            opening -= 1
        if opening >= start and data[opening] == ord("["):
            stop = opening
        elif is_at(data, start, stop, stop - len(EDIT), EDIT):
            stop -= len(EDIT)
        elif is_at(data, start, stop, stop - len(NEEDED), NEEDED):
            stop -= len(NEEDED)
        else:
            break
    return stop


@kernel
def _terminated(data: np.ndarray, start: int, stop: int) -> bool:
    """Return True if a line ends with a period, a question or exclamation mark or a quotation mark, and not with three
    periods.
    """
    stop = without_citations(data, start, stop)
    if stop == start:
        return False
    final = data[stop - 1]
    if final != ord("."):
        return final == ord("?") or final == ord("!") or final == ord('"') or final == ord("'")
    dots = 0
    while stop > start and data[stop - 1] == ord(".") and dots < ELLIPSIS_DOTS:
        dots += 1
        stop = without_citations(data, start, stop - 1)
    return dots < ELLIPSIS_DOTS


@kernel
def _sentences(data: np.ndarray, table: np.ndarray, words: Words, first: int, last: int) -> int:
    """Return the number of sentences of a line: one for each word that ends with a terminal character, quotation marks
    and brackets behind it aside, and one for the words that remain.
    """
    sentences, ended = 0, True
    for word in range(first, last):
        ended = False
        if not words.flags[word] & ENDING:
            continue
        start = words.starts[word]
        stop = without_citations(data, start, words.stops[word])
        while stop > start:
            place = before(data, stop)
            character, _ = decode(data, place)
            if not table[character] & CLOSER:
                ended = table[character] & TERMINAL != 0
                break
            stop = place
        sentences += ended
    return sentences + (not ended)
