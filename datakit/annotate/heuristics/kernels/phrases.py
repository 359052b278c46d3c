"""Finds the phrases for which C4 drops lines and documents, whatever the case of their ASCII letters.

Each phrase has a rare letter, its anchor. Only there are the phrases with this anchor compared with the text, so most
characters cost nothing.
"""

from __future__ import annotations

import numpy as np

from datakit.text.numba_cache import Decorator, cached_njit

BRACE, LOREM_IPSUM, JAVASCRIPT, POLICY = 1, 2, 3, 4  # kinds of marks
# the anchor's index in the phrase, the phrase, and its kind; phrases with the same anchor are neighbours
PHRASES = (
    (0, "javascript", JAVASCRIPT),
    (7, "lorem ipsum", LOREM_IPSUM),
    (7, "terms of use", POLICY),
    (3, "privacy policy", POLICY),
    (3, "cookie policy", POLICY),
    (8, "uses cookies", POLICY),
    (10, "use of cookies", POLICY),
    (7, "use cookies", POLICY),
)
_LONGEST = max(len(phrase) for _, phrase, _ in PHRASES)
_BYTES = np.array([list(phrase.encode().ljust(_LONGEST)) for _, phrase, _ in PHRASES], np.uint8)
_LENGTHS = np.array([len(phrase) for _, phrase, _ in PHRASES], np.int64)
_INDICES = np.array([index for index, _, _ in PHRASES], np.int64)
_KINDS = np.array([kind for _, _, kind in PHRASES], np.int64)
_ANCHORS = np.array([ord(phrase[index]) for index, phrase, _ in PHRASES], np.int64)
_LOWER = np.uint8(0x20)  # turns an ASCII letter into lower case
_NEXT = np.zeros(
    256, np.uint8
)  # for each anchor, the letter after the next one, the same in all phrases with this anchor
_NEXT[_ANCHORS] = [ord(phrase[index + 2]) for index, phrase, _ in PHRASES]

kernel: Decorator = cached_njit()


@kernel
def may_be_phrase(data: np.ndarray, position: int) -> bool:
    """Return False if no phrase has its anchor at `position`, and in most cases only then. There must be an anchor."""
    return position + 2 < len(data) and data[position + 2] | _LOWER == _NEXT[data[position] | _LOWER]


@kernel
def phrase_at(data: np.ndarray, position: int) -> int:
    """Return the kind of the phrase whose anchor is at `position`; 0 if there is none."""
    anchor = data[position] | _LOWER
    for number in range(len(_ANCHORS)):
        if _ANCHORS[number] == anchor:
            first = position - _INDICES[number]
            if first >= 0 and first + _LENGTHS[number] <= len(data) and _equals(data, first, number):
                return _KINDS[number]
    return 0


@kernel
def _equals(data: np.ndarray, first: int, number: int) -> bool:
    for i in range(_LENGTHS[number]):
        byte = np.int64(data[first + i])
        if ord("A") <= byte <= ord("Z"):
            byte |= _LOWER
        if byte != _BYTES[number, i]:
            return False
    return True
