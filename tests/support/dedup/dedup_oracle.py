"""Computes what dedup computes in plain Python: words by `re`, shingles as sets, hashes with unbounded integers.

It is slow and simple. A regular expression lists the blocks of scripts written without spaces, more coarsely than the
frozen tables, so tests use assigned characters only.
"""

from __future__ import annotations

import re
from collections.abc import Set

MASK = 2**64 - 1
GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
SPACELESS = (
    "\u0e01-\u0e3a\u0e40-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Tibetan, Myanmar, Khmer
    "\u3005-\u3007\u3041-\u30fa\u30fc-\u30ff\u3400-\u9fff\uff66-\uff9f"  # Han, Hiragana, Katakana
)
WORDS = re.compile(rf"[^\W{SPACELESS}]+|(?:(?=\w)[{SPACELESS}])")
ALONE = re.compile(f"[{SPACELESS}]")


def words(text: str) -> list[str]:
    """Return the words of a text, lower-cased character by character: maximal runs, or single characters."""
    if "\u0130" in text or "Σ" in text:  # the only ones that str.lower does not map one to one, or by context
        return WORDS.findall("".join(character.lower()[0] for character in text))
    return WORDS.findall(text.lower())


def shingles(text: str, ngram: int = 5) -> set[tuple[str, ...]]:
    """Return the set of runs of `ngram` words."""
    found = words(text)
    return set(zip(*(found[i:] for i in range(ngram)), strict=False))


def jaccard(one: Set, other: Set) -> float:
    """Return the Jaccard similarity, 0 for two empty sets."""
    both = len(one & other)
    return both / (len(one) + len(other) - both) if one or other else 0.0


def mix(value: int) -> int:
    """Return splitmix64's finalizer of a value."""
    value = (value ^ value >> 30) * MIX_1 & MASK
    value = (value ^ value >> 27) * MIX_2 & MASK
    return value ^ value >> 31


def word_hash(word: str) -> int:
    """Return h = (h ^ entry) * GOLDEN over all characters; an entry is the character with the flag of its kind."""
    value = 0
    for character in word:
        entry = ord(character) | (1 << 25 if ALONE.match(character) else 1 << 24)
        value = (value ^ entry) * GOLDEN & MASK
    return value


def shingle_hash(shingle: tuple[str, ...]) -> int:
    """Return mix(sum of mix(word) * MIX_1 ** (1 + position))."""
    return mix(sum(mix(word_hash(word)) * pow(MIX_1, i + 1, 2**64) for i, word in enumerate(shingle)) & MASK)


def permutations(seed: int, count: int) -> list[tuple[int, int]]:
    """Return (multiplier, addend) of each permutation: upper halves of splitmix64's outputs."""
    outputs = [mix((seed + GOLDEN * step) & MASK) >> 32 for step in range(1, 2 * count + 1)]
    return [(outputs[2 * i] | 1, outputs[2 * i + 1]) for i in range(count)]


def band_keys(text: str, bands: int, rows: int, ngram: int, seed: int) -> list[int]:
    """Return the band keys of a text that is not skipped."""
    short = [shingle_hash(shingle) >> 32 for shingle in shingles(text, ngram)]
    minima = [min((value * a + b) & 0xFFFFFFFF for value in short) for a, b in permutations(seed, bands * rows)]
    keys = []
    for band in range(bands):
        key = mix(band + 1)
        for row in range(band * rows, (band + 1) * rows):
            key = mix(key ^ minima[row])
        keys.append(key)
    return keys
