"""Counts stop words: how many different ones a document has, and how often they occur.

A document's words are numbered, so each different word is looked up once.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from datakit.annotate.heuristics.kernels import counts, spans, words
from datakit.annotate.heuristics.kernels.characters import ALONE, SPACE, flags_table
from datakit.annotate.heuristics.kernels.spans import EMPTY, Numbers, mix, slots_for
from datakit.annotate.heuristics.kernels.words import Words
from datakit.annotate.heuristics.stop_word_lists import stop_word_lists
from datakit.text.hash_mixing import GOLDEN
from datakit.text.numba_cache import cached_njit

kernel = cached_njit(counts, spans, words)


class StopWords(NamedTuple):
    """The stop words of L lists. data: the bytes of the words, one after the other, uint8. offsets: int64 [N + 1].
    hashes: uint64 [N]. members: bool [N, L], which list has which word. slots: a hash table, int32.
    """

    data: np.ndarray
    offsets: np.ndarray
    hashes: np.ndarray
    members: np.ndarray
    slots: np.ndarray


def is_one_word(word: str) -> bool:
    """Return True if a string is exactly one word by the rule of `words.py`."""
    flags = flags_table()[[ord(character) for character in word]]
    return len(word) > 0 and not (flags & SPACE).any() and (len(word) == 1 or not (flags & ALONE).any())


def stop_words(names: Sequence[str]) -> StopWords:
    """Return the stop words of these lists."""
    lists = [stop_word_lists()[name] for name in names]
    distinct = sorted({word for words in lists for word in words})
    encoded = [word.encode() for word in distinct]
    hashes = np.array([_hash(word) for word in distinct], np.uint64)
    members = np.array([[word in words for words in lists] for word in distinct], bool).reshape(len(distinct), -1)
    slots = np.full(slots_for(len(distinct)), EMPTY, np.int32)
    _fill(hashes, slots)
    offsets = np.cumsum([0, *map(len, encoded)]).astype(np.int64)
    return StopWords(np.frombuffer(b"".join(encoded), np.uint8).copy(), offsets, hashes, members, slots)


def _hash(word: str) -> int:
    """Return the hash that `words.scan` gives to a word."""
    hashed = 0
    for character in word:
        hashed = ((hashed ^ ord(character)) * int(GOLDEN)) % 2**64
    return hashed


@kernel
def _fill(hashes: np.ndarray, slots: np.ndarray) -> None:
    for number in range(len(hashes)):
        slot = np.int64(mix(hashes[number]) & np.uint64(len(slots) - 1))
        while slots[slot] != EMPTY:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = number


@kernel
def _find(data: np.ndarray, start: int, stop: int, hashed: np.uint64, stop_words: StopWords) -> int:
    """Return the number of the stop word `data[start:stop]`; -1 if it is none."""
    slot = np.int64(mix(hashed) & np.uint64(len(stop_words.slots) - 1))
    while stop_words.slots[slot] != EMPTY:
        number = stop_words.slots[slot]
        first, last = stop_words.offsets[number], stop_words.offsets[number + 1]
        if stop_words.hashes[number] == hashed and last - first == stop - start:
            equal = True
            for i in range(stop - start):
                equal &= stop_words.data[first + i] == data[start + i]
            if equal:
                return number
        slot = (slot + 1) & (len(stop_words.slots) - 1)
    return -1


@kernel
def count_stop_words(
    data: np.ndarray, words: Words, distinct: int, numbers: Numbers, stop_words: StopWords, row: np.ndarray
) -> None:
    """Add the number of different stop words and of their occurrences to `row`, int64 [2 * L], for each list."""
    for number in range(distinct):
        word = numbers.firsts[number]
        found = _find(data, words.starts[word], words.stops[word], words.hashes[word], stop_words)
        if found >= 0:
            for one in range(stop_words.members.shape[1]):
                if stop_words.members[found, one]:
                    row[2 * one] += 1
                    row[2 * one + 1] += numbers.totals[number]
