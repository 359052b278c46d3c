"""Normalizes long texts piece by piece, and decides where a piece may begin.

Normalizing a long text as a whole would take too much memory: `tokenizers` needs about 40 bytes for each byte of text.
The text is cut only before characters that no normalization form joins to what precedes them, so the normalized pieces,
joined, are the normalized text. Python's Unicode tables determine which characters these are. The text is never cut
before a character that these tables lack; for the characters that they contain, Unicode's stability policy fixes the
decompositions and combining classes. A piece grows until a suitable character is found. So a megabyte of combining
marks stays in one piece, as it must: normalization may reorder all of them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from functools import cache

PIECE_CHARACTERS = 1 << 15
ALONE_BELOW = "\u0300"  # the first combining character; `stands_alone` is True for all characters before it
ALONE = frozenset(  # general categories of characters that stand alone
    ["Lu", "Ll", "Lt", "Nd", "No", "Zs", "Zl", "Zp", "Po", "Pd", "Ps", "Pe", "Pi", "Pf", "Sm", "Sc", "So", "Cf"]
)
# Ranges of characters in category Lo that stand alone. Some others in Lo, such as the vowels of Hangul, compose with
# the character before them.
LETTERS = (
    range(0x1100, 0x1160),  # leading consonants of Hangul; every decomposed syllable begins with one of them
    range(0x3041, 0x3097),
    range(0x30A1, 0x30FB),
    range(0x3400, 0x4DC0),
    range(0x4E00, 0xA000),
)


def normalized(text: str, normalize: Callable[[str], str], size: int = PIECE_CHARACTERS) -> str:
    """Return `normalize(text)`, computed in pieces of about `size` characters."""
    return "".join(piece if piece.isascii() else normalize(piece) for piece in pieces(text, size))


def pieces(text: str, size: int) -> Iterator[str]:
    """Cut the text into pieces that can be normalized independently of each other. All except the last have at least
    `size` characters.
    """
    start = 0
    while start < len(text):
        stop = start + size
        while stop < len(text) and not stands_alone(text[stop]):
            stop += 1
        yield text[start:stop]
        start = stop


@cache
def stands_alone(character: str) -> bool:
    """Return True if no normalization form combines this character with, or moves it past, a character before it."""
    if character < ALONE_BELOW:
        return True
    first = unicodedata.normalize("NFKD", character)[0]
    if unicodedata.combining(first):
        return False
    return unicodedata.category(first) in ALONE or any(ord(first) in letters for letters in LETTERS)
