"""Lists the features of datakit's linear classifier, and computes its scores, slowly, in plain Python."""

from __future__ import annotations

import math

import numpy as np

from datakit.text.unicode_words import ALONE, WORD, character_table

GOLDEN, BITS = 0x9E3779B97F4A7C15, (1 << 64) - 1


def mix(value: int) -> int:
    """The finalizer of splitmix64."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & BITS
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & BITS
    return value ^ (value >> 31)


def word_codes(text: str) -> list[int]:
    """The hash of each word."""
    table, found, code = character_table(), list[int](), 0
    for character in [*text, " "]:
        entry = int(table[ord(character)])
        if entry & int(WORD):
            code = (code ^ entry) * GOLDEN & BITS
            continue
        if code:
            found.append(code)
        code = 0
        if entry & int(ALONE):
            found.append(entry * GOLDEN & BITS)
    return found


def buckets(text: str, bits: int) -> list[int]:
    """The bucket of each word and, after it, of the pair that it ends."""
    codes, found = word_codes(text), list[int]()
    for i, code in enumerate(codes):
        found.append(mix(code) >> (64 - bits))
        if i:
            found.append(mix((mix(codes[i - 1]) + code * GOLDEN) & BITS) >> (64 - bits))
    return found


def probability(text: str, bits: int, weights: np.ndarray, bias: float) -> float | None:
    """The score of a document; None if it has no words."""
    found = buckets(text, bits)
    if not found:
        return None
    return 1 / (1 + math.exp(-bias - sum(float(weights[one]) for one in found) * 100 / len(found)))
