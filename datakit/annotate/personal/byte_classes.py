"""Classifies bytes for the kernels: one table lookup per byte tells whether anything can begin there.

Bytes of 128 and above belong to characters outside ASCII. They never extend a number or a key, so a number between
Japanese characters, which are written without spaces, is found.
"""

from __future__ import annotations

import string
from typing import NamedTuple

import numpy as np

from datakit.annotate.personal.kinds import (
    AWS_KEY,
    CARD,
    EMAIL,
    EMAIL_RESERVED,
    GITHUB_TOKEN,
    GOOGLE_KEY,
    IBAN,
    IPV4,
    IPV4_RESERVED,
    IPV6,
    IPV6_RESERVED,
    JWT,
    PHONE,
    PRIVATE_KEY,
    SECRET,
    SLACK_TOKEN,
    STRIPE_KEY,
)
from datakit.text.numba_cache import cached_njit

# classes of bytes, as bits of FLAGS
WORD, DIGIT, HEX, LOCAL, VALUE = 1, 2, 4, 8, 16
_LETTERS_AND_DIGITS = string.ascii_letters + string.digits
_CLASSES = {
    WORD: _LETTERS_AND_DIGITS + "_",  # continues a name or a number
    DIGIT: string.digits,
    HEX: string.hexdigits,
    LOCAL: _LETTERS_AND_DIGITS + "._%+-",  # the part of an e-mail address before the @
    VALUE: _LETTERS_AND_DIGITS + "+/=_-",  # a secret in base64, base64url, hexadecimal or plain letters
}
# what may begin or lie at a byte, as values of a table of anchors; 0: nothing
AT, NUMBER, COLON, EQUALS, PREFIX = 1, 2, 3, 4, 5


def _flags() -> np.ndarray:
    flags = np.zeros(256, np.uint8)
    for bit, characters in _CLASSES.items():
        flags[np.frombuffer(characters.encode(), np.uint8)] |= bit
    return flags


FLAGS = _flags()


class Family(NamedTuple):
    """Kinds that are found at the same bytes."""

    kinds: frozenset[int]
    anchors: tuple[tuple[str, int], ...]


FAMILIES = (
    Family(frozenset({EMAIL, EMAIL_RESERVED}), (("@", AT),)),
    Family(frozenset({IPV4, IPV4_RESERVED, CARD, IBAN, PHONE}), ((string.digits, NUMBER),)),
    Family(frozenset({IPV6, IPV6_RESERVED}), ((":", COLON),)),
    Family(frozenset({SECRET}), (("=", EQUALS), (":", COLON))),
    Family(
        frozenset({AWS_KEY, GITHUB_TOKEN, GOOGLE_KEY, JWT, PRIVATE_KEY, SLACK_TOKEN, STRIPE_KEY}), (("ABJx_", PREFIX),)
    ),
)


def anchor_table(kinds: frozenset[int]) -> np.ndarray:
    """Return uint8 [256]: what may lie at each byte, for a search of these kinds. Families are left out as a whole."""
    table = np.zeros(256, np.uint8)
    for family in FAMILIES:
        if family.kinds & kinds:
            for characters, anchor in family.anchors:
                table[np.frombuffer(characters.encode(), np.uint8)] = anchor
    return table


kernel = cached_njit()


@kernel
def has(byte: int, bit: int) -> bool:
    """Return True if a byte is in a class."""
    return FLAGS[byte] & bit != 0


@kernel
def before(data: np.ndarray, start: int, position: int) -> int:
    """Return the byte before a position of a text that begins at `start`; 0 if there is none."""
    return data[position - 1] if position > start else 0


@kernel
def at(data: np.ndarray, position: int, stop: int) -> int:
    """Return the byte at a position of a text that ends at `stop`; 0 if the text ends before."""
    return data[position] if position < stop else 0
