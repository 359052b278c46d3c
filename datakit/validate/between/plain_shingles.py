"""Computes the shingles of a text with numpy, from the definition in `datakit/text/shingle_kernels.py`.

Validation must not trust the code that it checks, so this module does not use the compiled loops of dedup. Loading
those would also take a second of CPU time and 130 MB of memory.

Cost: about 20 MB of text per CPU-second. Memory: about 40 bytes per character of one text.
"""

from __future__ import annotations

import numpy as np

from datakit.text.hash_mixing import GOLDEN, MIX_1, mix
from datakit.text.unicode_words import ALONE, WORD, character_table
from datakit.validate.id_lists import distinct

SHORT = 64  # so many characters are hashed in all words at once; the rest of longer words, word by word
MASK = (1 << 64) - 1


def shingles_of(text: str, ngram: int) -> np.ndarray:
    """Return the distinct shingles of a text, sorted: uint64."""
    words = mix(word_hashes(text))
    count = len(words) - ngram + 1
    if count <= 0:
        return np.empty(0, np.uint64)
    sums, coefficient = np.zeros(count, np.uint64), 1
    for place in range(ngram):
        coefficient = coefficient * int(MIX_1) & MASK
        sums += words[place : place + count] * np.uint64(coefficient)
    return distinct(mix(sums))


def word_hashes(text: str) -> np.ndarray:
    """Return the hash of each word of a text, in order: uint64."""
    entries = character_table()[np.frombuffer(text.encode("utf-32-le"), "<u4")]
    inside, alone = (entries & WORD) > 0, (entries & ALONE) > 0
    before = np.concatenate([[False], inside[:-1]])
    starts = np.flatnonzero((inside & ~before) | alone)
    breaks = np.append(np.flatnonzero(~inside), len(entries))
    ends = np.where(alone[starts], starts + 1, breaks[np.searchsorted(breaks, starts)])
    return _hashed(entries.astype(np.uint64), starts, ends)


def _hashed(entries: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Hash the characters [start, end) of each word: the first SHORT for all words at once, the rest word by word."""
    hashes, left = np.zeros(len(starts), np.uint64), np.arange(len(starts))
    for place in range(SHORT):
        left = left[starts[left] + place < ends[left]]
        if not len(left):
            return hashes
        hashes[left] = (hashes[left] ^ entries[starts[left] + place]) * GOLDEN
    for word in left.tolist():
        value = int(hashes[word])
        for entry in entries[starts[word] + SHORT : ends[word]].tolist():
            value = (value ^ entry) * int(GOLDEN) & MASK
        hashes[word] = value
    return hashes
