"""Finds the words that become one token although merges would make others of them. Only tokenizers with `ignore_merges`
have such words: entries of the vocabulary that no sequence of merges makes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numba import njit

from datakit.text import hash_mixing
from datakit.text.hash_mixing import GOLDEN
from datakit.text.numba_cache import Decorator, cached_njit
from datakit.tokenize.encoders.bpe import memory_access
from datakit.tokenize.encoders.bpe.memory_access import address_of, byte, word32, word64

NO_TOKEN = np.uint64(1 << 32)
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_HALF = np.uint64(32)

kernel: Decorator = cached_njit(hash_mixing, memory_access)
inner = njit(nogil=True)


@dataclass(frozen=True, eq=False)
class WholeWords:
    """A table of W words with open addressing. slots: uint64 [S], for each word its number plus 1, and 0 for an empty
    slot; S is a power of two. offsets: uint64 [W + 1], where each word begins in `text`, uint8. tokens: uint32 [W].
    """

    slots: np.ndarray
    offsets: np.ndarray
    text: np.ndarray
    tokens: np.ndarray

    @classmethod
    def of(cls, words: list[tuple[bytes, int]]) -> WholeWords:
        """Return the table of words, each with its token."""
        text = np.frombuffer(b"".join(word for word, _ in words) or b"\0", np.uint8)
        offsets = np.cumsum([0, *(len(word) for word, _ in words)]).astype(np.uint64)
        slots = np.zeros(1 << max(4, (2 * len(words)).bit_length()), np.uint64)
        table = cls(slots, offsets, text, np.array([token for _, token in words] or [0], np.uint32))
        if words:  # few tokenizers have any, and the kernel need not be compiled for the others
            put_words(table.addresses(), np.uint64(len(words)), slots)
        return table

    def addresses(self) -> WordAddresses:
        places = (np.uint64(address_of(getattr(self, entry.name))) for entry in fields(self))
        return WordAddresses(np.uint64(len(self.slots) - 1), *places)


class WordAddresses(NamedTuple):
    """The number of slots less 1, and the addresses of the arrays of `WholeWords`: uint64 each."""

    last: np.uint64
    slots: np.uint64
    offsets: np.uint64
    text: np.uint64
    tokens: np.uint64


@inner
def _hash(text: np.uint64, at: np.uint64, size: np.uint64) -> np.uint64:
    mixed = size
    for i in range(size):
        mixed = (mixed ^ byte(text, at + i)) * GOLDEN
    return mixed ^ mixed >> _HALF


@kernel
def put_words(table: WordAddresses, count: np.uint64, slots: np.ndarray) -> None:
    """Fill the empty slots of a table."""
    for number in range(count):
        start, stop = word64(table.offsets, number), word64(table.offsets, number + _ONE)
        slot = _hash(table.text, start, stop - start) & table.last
        while slots[slot] != _ZERO:
            slot = (slot + _ONE) & table.last
        slots[slot] = number + _ONE


@inner
def whole_word(text: np.uint64, at: np.uint64, size: np.uint64, table: WordAddresses) -> np.uint64:
    """Return the token of a word, or NO_TOKEN if it is not in the table."""
    slot = _hash(text, at, size) & table.last
    while True:
        entry = word64(table.slots, slot)
        if entry == _ZERO:
            return NO_TOKEN
        start, stop = word64(table.offsets, entry - _ONE), word64(table.offsets, entry)
        if stop - start == size:
            same = True
            for i in range(size):
                if byte(table.text, start + i) != byte(text, at + i):
                    same = False
                    break
            if same:
                return word32(table.tokens, entry - _ONE)
        slot = (slot + _ONE) & table.last
