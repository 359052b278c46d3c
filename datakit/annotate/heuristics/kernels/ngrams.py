"""Counts the characters of repeated n-grams of words, exactly.

Words are numbered, and each n-gram is a pair of (n-1)-grams: those that begin at its first and at its second word. So
n-grams are equal if and only if two numbers are, without hashing any text. An n-gram can only be repeated if both of
its (n-1)-grams are, so each step looks only at what the previous step found repeated. In most texts, few 5-grams are
repeated, and the longer ones cost almost nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.annotate.heuristics.kernels import counts, spans, words
from datakit.annotate.heuristics.kernels.counts import (
    DUPLICATE_5,
    FEWEST_DUPLICATE,
    FEWEST_TOP,
    MOST_DUPLICATE,
    MOST_TOP,
    TOP_2,
)
from datakit.annotate.heuristics.kernels.spans import EMPTY, Numbers, mix, slots_for
from datakit.annotate.heuristics.kernels.words import Words
from datakit.text.numba_cache import cached_njit

kernel = cached_njit(counts, spans, words)


class Grams(NamedTuple):
    """Repeated n-grams, in the order of the text. positions: the first word of each, int32. ids: int32, equal for equal
    n-grams. keys: the numbers of its two (n-1)-grams, uint64. ends: int32 [words + 1], the characters before each word.
    """

    positions: np.ndarray
    ids: np.ndarray
    keys: np.ndarray
    ends: np.ndarray


@kernel
def count_ngrams(words: Words, count: int, numbers: Numbers, grams: Grams, row: np.ndarray) -> int:
    """Count the characters of repeated n-grams of `count` words. numbers: those of the words; it is overwritten. Return
    the slots that were looked at.
    """
    grams.ends[0], kept, steps = 0, 0, 0
    for word in range(count):
        grams.ends[word + 1] = grams.ends[word] + words.lengths[word]
        if numbers.totals[numbers.ids[word]] > 1:
            grams.positions[kept], grams.ids[kept] = word, numbers.ids[word]
            kept += 1
    for n in range(2, MOST_DUPLICATE + 1):
        kept, looked_at = _lengthen(kept, numbers, grams)
        steps += looked_at
        if not kept:
            break
        if FEWEST_TOP <= n <= MOST_TOP:
            row[TOP_2 + n - FEWEST_TOP] = _top(kept, n, numbers, grams)
        if n >= FEWEST_DUPLICATE:
            row[DUPLICATE_5 + n - FEWEST_DUPLICATE] = _duplicates(kept, n, numbers, grams)
    return steps


@kernel
def _lengthen(count: int, numbers: Numbers, grams: Grams) -> tuple[int, int]:
    """Replace repeated (n-1)-grams by the repeated n-grams. Return the number of these, and of the slots looked at."""
    pairs = 0
    for i in range(count - 1):
        if grams.positions[i + 1] == grams.positions[i] + 1:
            grams.keys[pairs] = (np.uint64(grams.ids[i]) << np.uint64(32)) | np.uint64(grams.ids[i + 1])
            grams.positions[pairs] = grams.positions[i]
            pairs += 1
    kept, steps = 0, _number_keys(pairs, numbers, grams)
    for i in range(pairs):
        if numbers.totals[numbers.ids[i]] > 1:
            grams.positions[kept], grams.ids[kept] = grams.positions[i], numbers.ids[i]
            kept += 1
    return kept, steps


@kernel
def _number_keys(count: int, numbers: Numbers, grams: Grams) -> int:
    """Number `count` keys: equal ids for equal keys. Return the slots that were looked at."""
    size, distinct, steps = slots_for(count), 0, 0
    slots, mask = numbers.slots, np.uint64(size - 1)
    slots[:size] = EMPTY
    for i in range(count):
        key = grams.keys[i]
        slot = np.int64(mix(key) & mask)
        while slots[slot] != EMPTY and numbers.keys[slot] != key:
            slot = (slot + 1) & (size - 1)
            steps += 1
        if slots[slot] == EMPTY:
            slots[slot], numbers.keys[slot], numbers.totals[distinct] = distinct, key, 0
            distinct += 1
        numbers.ids[i] = slots[slot]
        numbers.totals[slots[slot]] += 1
    return steps + count


@kernel
def _top(count: int, n: int, numbers: Numbers, grams: Grams) -> int:
    """Return the characters of all occurrences of the most frequent n-gram, with one space between its words; of
    several, the first in the text.
    """
    best = 0
    for i in range(1, count):
        if numbers.totals[grams.ids[i]] > numbers.totals[grams.ids[best]]:
            best = i
    first = grams.positions[best]
    length = grams.ends[first + n] - grams.ends[first] + n - 1
    return length * numbers.totals[grams.ids[best]]  # pyright: ignore[reportReturnType] - a kernel


@kernel
def _duplicates(count: int, n: int, numbers: Numbers, grams: Grams) -> int:
    """Return the characters of duplicate n-grams. The text is read from its start: an n-gram that was read before is a
    duplicate, and reading goes on behind it; otherwise, reading goes on at the next word.
    """
    characters, reading = 0, 0
    for i in range(count):
        first, number = grams.positions[i], grams.ids[i]
        if first < reading:
            continue
        if numbers.totals[number] < 0:
            characters += grams.ends[first + n] - grams.ends[first]
            reading = first + n
        else:
            numbers.totals[number] = -1
    return characters  # pyright: ignore[reportReturnType] - a kernel
