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
_LOWER = 0x20  # turns an ASCII letter into lower case

kernel: Decorator = cached_njit()


@kernel
def phrase_at(data: np.ndarray, start: int, stop: int, position: int) -> int:
    """Return the kind of the phrase in `data[start:stop]` whose anchor is at `position`; 0 if there is none."""
    anchor = np.int64(data[position]) | _LOWER
    for number in range(len(_ANCHORS)):
        if _ANCHORS[number] == anchor:
            first = position - _INDICES[number]
            if first >= start and first + _LENGTHS[number] <= stop and _equals(data, first, number):
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
