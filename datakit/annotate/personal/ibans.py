"""Finds IBANs (ISO 13616): a country, two check digits, and an account number of the country's length.

Lengths are those of the 89 countries in the SWIFT IBAN Registry, and agree with schwifty 2026.10.1. That library also
lists 38 countries and territories that are not in the registry; their numbers are not found. The check digits are those
of ISO 7064, MOD 97-10; one random number in 97 passes. Upper case only; written without spaces, or with one space after
each four characters. Cost: at most 33 characters and their spaces are read per number.
"""

from __future__ import annotations

import numpy as np

from datakit.annotate.personal import byte_classes
from datakit.annotate.personal.byte_classes import DIGIT, WORD, at, before, has
from datakit.text.numba_cache import cached_njit

_COUNTRIES = {
    15: "NO",
    16: "BE",
    18: "DK FI FK FO GL NL SD",
    19: "MK SI",
    20: "AT BA EE KZ LT LU MN XK",
    21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA",
    23: "AE GI IL IQ OM SO TL",
    24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST",
    26: "IS TR",
    27: "BI DJ FR GR IT MC MR SM",
    28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
    29: "BR EG PS QA UA",
    30: "JO KW MU YE",
    31: "MT SC",
    32: "LC",
    33: "RU",
}
LENGTHS = {country: length for length, countries in _COUNTRIES.items() for country in countries.split()}


def _table() -> np.ndarray:
    table = np.zeros(26 * 26, np.int64)
    for country, length in LENGTHS.items():
        table[26 * (ord(country[0]) - 65) + ord(country[1]) - 65] = length
    return table


_LENGTHS = _table()
kernel = cached_njit(byte_classes)


@kernel
def _is_upper(byte: int) -> bool:
    return 65 <= byte <= 90


@kernel
def _appended(remainder: int, byte: int) -> int:
    """Return the remainder, modulo 97, of a number to which the value of a character (A is 10, Z is 35) is appended."""
    return (remainder * 10 + byte - 48) % 97 if byte < 65 else (remainder * 100 + byte - 55) % 97


@kernel
def iban_end(data: np.ndarray, start: int, stop: int, digits: int) -> int:
    """Return the end of the IBAN whose check digits are at `digits` of data[start:stop]; 0 if there is none."""
    first = digits - 2
    if first < start or not _is_upper(data[first]) or not _is_upper(data[first + 1]):
        return 0
    if has(before(data, start, first), WORD) or not has(at(data, digits + 1, stop), DIGIT):
        return 0
    length = _LENGTHS[26 * (data[first] - 65) + data[first + 1] - 65]
    position, count, remainder = digits + 2, 4, 0
    while count < length:
        byte = at(data, position, stop)
        if byte == 32 and count % 4 == 0:
            position += 1
            byte = at(data, position, stop)
        if not (has(byte, DIGIT) or _is_upper(byte)):
            return 0
        remainder = _appended(remainder, byte)
        position, count = position + 1, count + 1
    for i in range(first, first + 4):
        remainder = _appended(remainder, data[i])
    check = 10 * (data[digits] - 48) + data[digits + 1] - 48
    valid = length > 0 and remainder == 1 and 2 <= check <= 98 and not has(at(data, position, stop), WORD)
    return position if valid else 0
