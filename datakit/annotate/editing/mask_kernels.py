"""Implements the compiled loops of `masking.py`, which check spans, merge those that overlap, and copy texts.

The size of each edited text is computed first, so the output is allocated once, in its final size.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.text.numba_cache import cached_njit

KEEP, MASK, CUT = 0, 1, 2

kernel = cached_njit()


class Spans(NamedTuple):
    """The spans of N texts. lists: int64 [N + 1], where the spans of each text begin. starts, stops: uint64, bytes of
    the text. kinds: int32, indexes of rules.
    """

    lists: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    kinds: np.ndarray


class Rules(NamedTuple):
    """The actions of K kinds. verbs: int64 [K]. bytes, ends: the replacements (see `string_buffers`)."""

    verbs: np.ndarray
    bytes: np.ndarray
    ends: np.ndarray


@kernel
def _divides(data: np.ndarray, position: int, stop: int) -> bool:
    """Return True if a position is inside a character: its byte continues one."""
    return position < stop and data[position] & 0xC0 == 0x80


@kernel
def first_misplaced(
    data: np.ndarray, offsets: np.ndarray, lists: np.ndarray, starts: np.ndarray, stops: np.ndarray
) -> int:
    """Return the index of the first span that is empty, starts before its predecessor, lies outside its text or divides
    a character; -1 if there is none.
    """
    for row in range(len(offsets) - 1):
        begin, end = offsets[row], offsets[row + 1]
        size, last = np.uint64(end - begin), np.uint64(0)
        for i in range(lists[row], lists[row + 1]):
            if starts[i] < last or starts[i] >= stops[i] or stops[i] > size:
                return i
            last = starts[i]
            if _divides(data, begin + np.int64(starts[i]), end) or _divides(data, begin + np.int64(stops[i]), end):
                return i
    return -1


@kernel
def any_in_row(lists: np.ndarray, marked: np.ndarray) -> np.ndarray:
    """Return, for each list, whether one of its spans is marked; bool [N]."""
    found = np.zeros(len(lists) - 1, np.bool_)
    for row in range(len(lists) - 1):
        for i in range(lists[row], lists[row + 1]):
            found[row] = found[row] or marked[i]
    return found


@kernel
def _next_stretch(spans: Spans, rules: Rules, i: int, last: int) -> tuple[int, int, int, int, int]:
    """Merge the first span from `i` on that is not kept with those that overlap it.

    Return the index after them, and the stretch's start, stop, kind and verb; the verb is KEEP if no span is left.
    """
    while i < last and rules.verbs[spans.kinds[i]] == KEEP:
        i += 1
    if i == last:
        return last, 0, 0, 0, KEEP
    start, stop, kind = np.int64(spans.starts[i]), np.int64(spans.stops[i]), np.int64(spans.kinds[i])
    verb = rules.verbs[kind]
    i += 1
    while i < last and np.int64(spans.starts[i]) < stop:
        other = rules.verbs[spans.kinds[i]]
        if other != KEEP:
            stop, verb = max(stop, np.int64(spans.stops[i])), max(verb, other)
        i += 1
    return i, int(start), int(stop), int(kind), verb


@kernel
def edited_sizes(
    offsets: np.ndarray, spans: Spans, rules: Rules, retained: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each retained text, its size after the edits, in bytes, and the number of edits; int64 each."""
    sizes, edits, row = np.zeros(retained.sum(), np.int64), np.zeros(retained.sum(), np.int64), 0
    for document in range(len(retained)):
        if retained[document]:
            size, i, last = offsets[document + 1] - offsets[document], spans.lists[document], spans.lists[document + 1]
            while True:
                i, start, stop, kind, verb = _next_stretch(spans, rules, i, last)
                if verb == KEEP:
                    break
                size -= stop - start
                size += rules.ends[kind + 1] - rules.ends[kind] if verb == MASK else 0
                edits[row] += 1
            sizes[row] = size
            row += 1
    return sizes, edits


@kernel
def _copied(source: np.ndarray, start: int, stop: int, output: np.ndarray, position: int) -> int:
    """Copy source[start:stop] to output[position:]; return the position after it."""
    output[position : position + stop - start] = source[start:stop]
    return position + stop - start


@kernel
def write_edited(
    data: np.ndarray, offsets: np.ndarray, spans: Spans, rules: Rules, retained: np.ndarray, output: np.ndarray
) -> None:
    """Write the retained texts, edited, one after the other, to `output`, uint8 of exactly their total size."""
    position = 0
    for document in range(len(retained)):
        if retained[document]:
            origin, copied = offsets[document], offsets[document]
            i, last = spans.lists[document], spans.lists[document + 1]
            while True:
                i, start, stop, kind, verb = _next_stretch(spans, rules, i, last)
                if verb == KEEP:
                    break
                position = _copied(data, copied, origin + start, output, position)
                copied = origin + stop
                if verb == MASK:
                    position = _copied(rules.bytes, rules.ends[kind], rules.ends[kind + 1], output, position)
            position = _copied(data, copied, offsets[document + 1], output, position)
