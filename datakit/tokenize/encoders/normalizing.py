"""Unicode normalization of a long text in pieces, for the library's takes some 40 bytes of memory for each of the text.

Cut before a character that no normalization form joins to what precedes it, the pieces normalize to the whole. Which
characters these are is told by Python's tables, and only of characters that they know: for those, the standard's
stability policy keeps decompositions and combining classes as they are. Where none is near (a megabyte of combining
marks, which normalization may reorder from one end to the other) the piece is as long as it must be.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from functools import cache

PIECE_CHARACTERS = 1 << 15
ALONE_BELOW = "\u0300"  # the first combining character
ALONE = frozenset(  # categories
    ["Lu", "Ll", "Lt", "Nd", "No", "Zs", "Zl", "Zp", "Po", "Pd", "Ps", "Pe", "Pi", "Pf", "Sm", "Sc", "So", "Cf"]
)
LETTERS = (  # of category Lo, where some scripts have vowel signs that compose
    range(0x1100, 0x1160),  # leading consonants of Hangul, which its syllables decompose to
    range(0x3041, 0x3097),
    range(0x30A1, 0x30FB),
    range(0x3400, 0x4DC0),
    range(0x4E00, 0xA000),
)


def normalized(text: str, normalize: Callable[[str], str], size: int = PIECE_CHARACTERS) -> str:
    """`normalize(text)`, in pieces of about `size` characters."""
    return "".join(piece if piece.isascii() else normalize(piece) for piece in pieces(text, size))


def pieces(text: str, size: int) -> Iterator[str]:
    """The text in pieces of at least `size` characters, cut where normalization does not look across."""
    start = 0
    while start < len(text):
        stop = start + size
        while stop < len(text) and not stands_alone(text[stop]):
            stop += 1
        yield text[start:stop]
        start = stop


@cache
def stands_alone(character: str) -> bool:
    """Whether no form composes this character, or reorders it, with one before it."""
    if character < ALONE_BELOW:
        return True
    first = unicodedata.normalize("NFKD", character)[0]
    if unicodedata.combining(first):
        return False
    return unicodedata.category(first) in ALONE or any(ord(first) in letters for letters in LETTERS)
