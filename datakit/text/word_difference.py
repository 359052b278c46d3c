"""Compares two texts word by word: yields the stretches that are equal and those that differ, with long equal stretches
shortened. Cost: the time grows with the square of the number of words, so at most COMPARED words of each text are
compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

COMPARED = 20_000  # maximum number of words compared in each text; the time taken grows with its square
CONTEXT = 12  # number of equal words that are shown before and after a difference
NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff\uff00-\uffef"
WORD = re.compile(rf"\s*(?:[{NO_SPACES}]|[^\s{NO_SPACES}]+)|\s+$")


class Stretch(NamedTuple):
    """A stretch of words from each of two texts. equal: False if the two are to be marked as different. left, right:
    the words of the two stretches, with the white space before them.
    """

    equal: bool
    left: str
    right: str


def stretches(left: str, right: str) -> Iterator[Stretch]:
    """Yield the equal and the different stretches of two texts, in order. Long equal stretches are shortened."""
    ours, theirs = WORD.findall(left), WORD.findall(right)
    for kind, a, b, c, d in SequenceMatcher(None, ours[:COMPARED], theirs[:COMPARED]).get_opcodes():
        if kind == "equal" and b - a > 3 * CONTEXT:
            head = ours[a : a + CONTEXT] if a or c else []
            tail = ours[b - CONTEXT : b] if b < len(ours) or d < len(theirs) else []
            left_out = f" [... {b - a - len(head) - len(tail):,} equal words ...]"
            for text in ("".join(head), left_out, "".join(tail)):
                if text:
                    yield Stretch(True, text, text)
        else:
            yield Stretch(kind == "equal", "".join(ours[a:b]), "".join(theirs[c:d]))
    if max(len(ours), len(theirs)) > COMPARED:
        rest = [f" [... {max(0, len(words) - COMPARED):,} more words, not compared ...]" for words in (ours, theirs)]
        yield Stretch(True, *rest)
