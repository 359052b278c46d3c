"""Counts stop words: how many different ones a document has, and how often they occur.

A document's words are numbered, so each stop word is looked up once in the table of the document's words.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from datakit.annotate.heuristics.kernels import counts, spans, words
from datakit.annotate.heuristics.kernels.spans import EMPTY, Numbers, key_of, mix, slots_for, windows_of
from datakit.annotate.heuristics.kernels.words import Words
from datakit.annotate.heuristics.stop_word_lists import stop_word_lists
from datakit.text.numba_cache import cached_njit

kernel = cached_njit(counts, spans, words)


class StopWords(NamedTuple):
    """The stop words of L lists. data: the bytes of the words, one after the other, uint8. offsets: int64 [N + 1].
    keys: uint64 [N]. members: bool [N, L], which list has which word.
    """

    data: np.ndarray
    offsets: np.ndarray
    keys: np.ndarray
    members: np.ndarray


def stop_words(names: Sequence[str]) -> StopWords:
    """Return the stop words of these lists."""
    lists = [stop_word_lists()[name] for name in names]
    distinct = sorted({word for words in lists for word in words})
    encoded = [word.encode() for word in distinct]
    members = np.array([[word in words for words in lists] for word in distinct], bool).reshape(len(distinct), -1)
    offsets = np.cumsum([0, *map(len, encoded)]).astype(np.int64)
    data, keys = np.frombuffer(b"".join(encoded), np.uint8), np.empty(len(distinct), np.uint64)
    _write_keys(data, windows_of(data), offsets, keys)
    return StopWords(data, offsets, keys, members)


@kernel
def _write_keys(data: np.ndarray, windows: np.ndarray, offsets: np.ndarray, keys: np.ndarray) -> None:
    for number in range(len(keys)):
        keys[number] = key_of(data, windows, offsets[number], offsets[number + 1])


@kernel
def _find(data: np.ndarray, words: Words, count: int, numbers: Numbers, stop_words: StopWords, number: int) -> int:
    """Return the id of a stop word among the `count` words of a document; -1 if it does not occur."""
    key, mask = stop_words.keys[number], slots_for(count) - 1
    slot = np.int64(mix(key) & np.uint64(mask))
    while numbers.slots[slot] != EMPTY:
        found = numbers.slots[slot]
        if numbers.keys[slot] == key:
            word = numbers.firsts[found]
            first, length = stop_words.offsets[number], stop_words.offsets[number + 1] - stop_words.offsets[number]
            equal = words.stops[word] - words.starts[word] == length
            for i in range(length if equal else 0):
                equal &= stop_words.data[first + i] == data[words.starts[word] + i]
            if equal:
                return found
        slot = (slot + 1) & mask
    return -1


@kernel
def count_stop_words(
    data: np.ndarray, words: Words, count: int, numbers: Numbers, stop_words: StopWords, row: np.ndarray
) -> None:
    """Add the number of different stop words and of their occurrences to `row`, int64 [2 * L], for each list. numbers:
    those of the `count` words.
    """
    for number in range(len(stop_words.keys)):
        found = _find(data, words, count, numbers, stop_words, number)
        if found >= 0:
            for one in range(stop_words.members.shape[1]):
                if stop_words.members[number, one]:
                    row[2 * one] += 1
                    row[2 * one + 1] += numbers.totals[found]
