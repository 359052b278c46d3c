"""Finds secrets of unknown form: values that are assigned to names such as `api_key` and look random.

The name ends in `token`, `secret`, `password`, `passwd`, `pwd` or `credential(s)`, or in `key` after a word such as
`api` or `access`. Then come a `:` or `=` and the value: in quotes, 16 to 128 letters, digits and `+/=_-`; without
quotes, at least 20, of which three are digits. The value has a letter and a digit, and a Shannon entropy of at least
LEAST_ENTROPY bits per character, the limit of gitleaks' rule `generic-api-key`; for at least LEAST_HEX hexadecimal
digits, LEAST_HEX_ENTROPY, the limit of detect-secrets. Only the value is reported.

Cost: LEAST bytes per `:` or `=`, at most LONGEST where so many letters and digits follow.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import re2

from datakit.annotate.personal import byte_classes
from datakit.annotate.personal.byte_classes import DIGIT, VALUE, at, before, has
from datakit.text.numba_cache import cached_njit

LEAST, LEAST_BARE, LONGEST = 16, 20, 128  # bytes of a value
LEAST_BARE_DIGITS = 3
LEAST_HEX = 32  # hexadecimal digits
LEAST_ENTROPY, LEAST_HEX_ENTROPY = 3.5, 3.0  # bits per character
NAME_BYTES = 40  # bytes before `=` or `:` that are searched for a name
_NAME = re2.compile(
    rb"(?i)(?:(?:api|access|secret|auth|private|client|signing|encryption|service|account|storage|master)[_.\- ]?key"
    rb"|token|secret|passw(?:or)?d|pwd|credentials?)[\"'`\])]{0,2}\s{0,3}\z"
)

kernel = cached_njit(byte_classes)


@kernel
def _is_gap(byte: int) -> bool:
    """Return True for a byte that may lie between a name, a sign and a value: a space, a tab, quotes, `=`, `>`, `)`."""
    return byte in (32, 9, 34, 39, 96, 61, 62, 93, 41)


@kernel
def value_after(data: np.ndarray, start: int, stop: int, sign: int) -> tuple[int, int]:
    """Return the start and the end of the value that may be a secret after the `:` or `=` at `sign`; (0, 0) if none."""
    name, least = sign, max(start, sign - 5)
    while name > least and _is_gap(data[name - 1]):
        name -= 1
    if name == start or data[name - 1] | 32 not in (100, 108, 110, 115, 116, 121):  # d l n s t y
        return 0, 0
    first = sign + 1
    while first < sign + 5 and _is_gap(at(data, first, stop)):
        first += 1
    end, digits, letters = first, 0, 0
    while end < first + LONGEST + 1 and has(at(data, end, stop), VALUE):
        digits += has(data[end], DIGIT)
        letters += data[end] > 64 and data[end] != 95
        end += 1
    if not LEAST <= end - first <= LONGEST or not digits or not letters:
        return 0, 0
    return (first, end) if _is_delimited(data, start, stop, first, end, digits) else (0, 0)


@kernel
def _is_delimited(data: np.ndarray, start: int, stop: int, first: int, end: int, digits: int) -> bool:
    """Return True if a value is in quotes, or is long enough and followed by what may follow a value without quotes."""
    lead, follow = before(data, start, first), at(data, end, stop)
    if lead in (34, 39, 96):
        return follow == lead
    follows = follow in (0, 9, 10, 13, 32, 34, 38, 39, 44, 59, 60, 96)  # the end, white space, and " & ' , ; < `
    return follows and end - first >= LEAST_BARE and digits >= LEAST_BARE_DIGITS


def is_secret(value: bytes, name: bytes) -> bool:
    """Return True if a value looks random and is assigned to the name of a secret. name: up to NAME_BYTES bytes before
    the sign.
    """
    is_hex = len(value) >= LEAST_HEX and not value.translate(None, b"0123456789abcdefABCDEF")
    least = LEAST_HEX_ENTROPY if is_hex else LEAST_ENTROPY
    return _NAME.search(name) is not None and entropy(value) >= least


def entropy(value: bytes) -> float:
    """Return the Shannon entropy of a value's bytes, in bits per byte.

    >>> entropy(b"aabb"), entropy(b"abcd")
    (1.0, 2.0)
    """
    shares = [count / len(value) for count in Counter(value).values()]
    return -math.fsum(share * math.log2(share) for share in shares)
