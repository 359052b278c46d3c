"""Finds numbers of payment cards: a known prefix, a length that belongs to it, and a valid check digit.

Prefixes and lengths (ISO/IEC 7812 issuers, as published by the networks): American Express 34, 37 (15 digits); Diners
Club 300-305, 36, 38-39 (14); Discover 6011, 644-649, 65 (16 to 19); JCB 3528-3589 (16 to 19); Mastercard 51-55,
2221-2720 (16); UnionPay 62 (16 to 19); Visa 4 (13, 16, 19). The check digit is Luhn's (ISO/IEC 7812-1, annex B); one
random number in ten passes it. Written without separators, or in the groups that are printed on cards (4-4-4-4,
4-4-4-4-3, 4-6-5, 4-6-4) with the same separator, a space or `-`. Cost: at most 20 digits are read per number.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

import numpy as np

from datakit.annotate.personal import byte_classes, number_groups
from datakit.annotate.personal.byte_classes import DIGIT, WORD, at, before, has
from datakit.annotate.personal.number_groups import HYPHEN, SPACE, Groups
from datakit.text.numba_cache import cached_njit

LEAST, MOST = 13, 19  # digits

kernel = cached_njit(byte_classes, number_groups)


@kernel
def has_luhn_digit(digits: np.ndarray, count: int) -> bool:
    """Return True if the last of `count` digits is Luhn's check digit of those before it."""
    total = 0
    for i in range(count):
        digit = digits[count - 1 - i] * (1 + (i & 1))
        total += digit - 9 if digit > 9 else digit
    return total % 10 == 0


@kernel
def _is_issued(digits: np.ndarray, count: int) -> bool:
    """Return True if a network issues cards of this length whose numbers begin with these digits."""
    two = 10 * digits[0] + digits[1]
    three = 10 * two + digits[2]
    four = 10 * three + digits[3]
    if digits[0] == 4:
        return count in (13, 16, 19)
    if two in (34, 37):
        return count == 15
    if 300 <= three <= 305 or two in (36, 38, 39):
        return count == 14
    if 51 <= two <= 55 or 2221 <= four <= 2720:
        return count == 16
    if 3528 <= four <= 3589 or four == 6011 or 644 <= three <= 649 or two in (62, 65):
        return 16 <= count <= MOST
    return False


@kernel
def _is_grouped(groups: Groups, count: int) -> bool:
    """Return True if the first `count` groups have the sizes and separators of a card."""
    sizes = groups.sizes
    if count == 1:
        return True
    for i in range(1, count):
        if groups.separators[i] != groups.separators[1] or groups.separators[i] not in (SPACE, HYPHEN):
            return False
    if count == 3:
        return sizes[0] == 4 and sizes[1] == 6 and 4 <= sizes[2] <= 5
    for i in range(min(count, 4)):
        if sizes[i] != 4:
            return False
    return count == 4 or (count == 5 and sizes[4] == 3)


@kernel
def card_end(data: np.ndarray, start: int, stop: int, first: int, groups: Groups, count: int) -> int:
    """Return the end of the card number that begins at the digit `first`, whose `count` groups have been read; 0 if
    there is none.
    """
    lead = before(data, start, first)
    if has(lead, WORD) or (lead in (44, 45, 46, 47) and has(before(data, start, first - 1), WORD)):
        return 0
    total, best = 0, 0
    for i in range(min(count, 5)):
        total += groups.sizes[i]
        if total > MOST:
            break
        follow, later = at(data, groups.ends[i], stop), at(data, groups.ends[i] + 1, stop)
        open_end = has(follow, WORD) or (follow in (44, 45, 46, 47) and has(later, DIGIT))
        if total >= LEAST and not open_end and _is_grouped(groups, i + 1) and _is_issued(groups.digits, total):
            best = groups.ends[i] if has_luhn_digit(groups.digits, total) else best
    return best
