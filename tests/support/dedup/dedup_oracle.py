"""What dedup computes, said once more in plain Python: words by `re`, shingles as sets, hashes with unbounded integers.

Slow and obvious. Where a script is written without spaces its blocks stand in a regular expression here, coarser than
the frozen tables; the tests keep to assigned characters.
"""

from __future__ import annotations

import re

MASK = 2**64 - 1
GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
SPACELESS = (
    "\u0e01-\u0e3a\u0e40-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Tibetan, Myanmar, Khmer
    "\u3005-\u3007\u3041-\u30fa\u30fc-\u30ff\u3400-\u9fff\uff66-\uff9f"  # Han, Hiragana, Katakana
)
WORDS = re.compile(rf"[^\W{SPACELESS}]+|(?:(?=\w)[{SPACELESS}])")
ALONE = re.compile(f"[{SPACELESS}]")


def words(text: str) -> list[str]:
    """The words of the text: character by character to lower case, then maximal runs, or single characters."""
    return WORDS.findall("".join(character.lower()[0] for character in text))


def shingles(text: str, ngram: int = 5) -> set[tuple[str, ...]]:
    """The set of runs of `ngram` words."""
    found = words(text)
    return {tuple(found[i : i + ngram]) for i in range(len(found) - ngram + 1)}


def jaccard(one: set, other: set) -> float:
    """Shared of all; 0 for two empty sets."""
    return len(one & other) / len(one | other) if one or other else 0.0


def mix(value: int) -> int:
    """splitmix64's finalizer."""
    value = (value ^ value >> 30) * MIX_1 & MASK
    value = (value ^ value >> 27) * MIX_2 & MASK
    return value ^ value >> 31


def word_hash(word: str) -> int:
    """As documented: (h ^ entry) * GOLDEN for each character, an entry being the character with its kind's flag."""
    value = 0
    for character in word:
        entry = ord(character) | (1 << 25 if ALONE.match(character) else 1 << 24)
        value = (value ^ entry) * GOLDEN & MASK
    return value


def shingle_hash(shingle: tuple[str, ...]) -> int:
    """mix(sum of mix(word) * MIX_1 ** (1 + position))."""
    return mix(sum(mix(word_hash(word)) * pow(MIX_1, i + 1, 2**64) for i, word in enumerate(shingle)) & MASK)


def permutations(seed: int, count: int) -> list[tuple[int, int]]:
    """(multiplier, addend) of each permutation: upper halves of splitmix64's outputs."""
    outputs = [mix((seed + GOLDEN * step) & MASK) >> 32 for step in range(1, 2 * count + 1)]
    return [(outputs[2 * i] | 1, outputs[2 * i + 1]) for i in range(count)]


def band_keys(text: str, bands: int, rows: int, ngram: int, seed: int) -> list[int]:
    """The band keys of a text that takes part."""
    short = [shingle_hash(shingle) >> 32 for shingle in shingles(text, ngram)]
    minima = [min((value * a + b) & 0xFFFFFFFF for value in short) for a, b in permutations(seed, bands * rows)]
    keys = []
    for band in range(bands):
        key = mix(band + 1)
        for row in range(band * rows, (band + 1) * rows):
            key = mix(key ^ minima[row])
        keys.append(key)
    return keys
