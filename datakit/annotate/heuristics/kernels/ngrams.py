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
    n-grams. keys: the numbers of its two (n-1)-grams, uint64. ends: int64 [words + 1], the characters before each word.
    """

    positions: np.ndarray
    ids: np.ndarray
    keys: np.ndarray
    ends: np.ndarray


@kernel
def count_ngrams(words: Words, count: int, numbers: Numbers, grams: Grams, row: np.ndarray) -> None:
    """Count the characters of repeated n-grams of `count` words. numbers: those of the words; it is overwritten."""
    grams.ends[0], kept = 0, 0
    for word in range(count):
        grams.ends[word + 1] = grams.ends[word] + words.lengths[word]
        if numbers.totals[numbers.ids[word]] > 1:
            grams.positions[kept], grams.ids[kept] = word, numbers.ids[word]
            kept += 1
    for n in range(2, MOST_DUPLICATE + 1):
        kept = _lengthen(kept, numbers, grams)
        if not kept:
            return
        if FEWEST_TOP <= n <= MOST_TOP:
            row[TOP_2 + n - FEWEST_TOP] = _top(kept, n, numbers, grams)
        if n >= FEWEST_DUPLICATE:
            row[DUPLICATE_5 + n - FEWEST_DUPLICATE] = _duplicates(kept, n, numbers, grams)


@kernel
def _lengthen(count: int, numbers: Numbers, grams: Grams) -> int:
    """Replace repeated (n-1)-grams by the repeated n-grams, and return the number of these."""
    pairs = 0
    for i in range(count - 1):
        if grams.positions[i + 1] == grams.positions[i] + 1:
            grams.keys[pairs] = (np.uint64(grams.ids[i]) << np.uint64(32)) | np.uint64(grams.ids[i + 1])
            grams.positions[pairs] = grams.positions[i]
            pairs += 1
    _number_keys(pairs, numbers, grams)
    kept = 0
    for i in range(pairs):
        if numbers.totals[numbers.ids[i]] > 1:
            grams.positions[kept], grams.ids[kept] = grams.positions[i], numbers.ids[i]
            kept += 1
    return kept


@kernel
def _number_keys(count: int, numbers: Numbers, grams: Grams) -> None:
    """Number `count` keys: equal ids for equal keys."""
    size, distinct = slots_for(count), 0
    slots, keys = numbers.slots, grams.keys
    slots[:size] = EMPTY
    for i in range(count):
        key = keys[i]
        slot = np.int64(mix(key) & np.uint64(size - 1))
        while slots[slot] != EMPTY and keys[numbers.firsts[slots[slot]]] != key:
            slot = (slot + 1) & (size - 1)
        if slots[slot] == EMPTY:
            slots[slot], numbers.firsts[distinct], numbers.totals[distinct] = distinct, i, 0
            distinct += 1
        numbers.ids[i] = slots[slot]
        numbers.totals[slots[slot]] += 1


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
