"""Finds telephone numbers.

Numbers are everywhere, so a number counts only if its form says what it is:

- international: `+` and an assigned calling code, 9 to 15 digits (ITU-T E.164, section 6); 11 digits for `+1`. With
  `00` in place of `+`, the number must be written in groups.
- labelled: 7 to 15 digits after a word such as `tel` or `fax` (`calling_codes.py`) and a space, a period or a colon.
- North America (NANP): `212-555-0123`, `(212) 555-0123`, `212.555.0123`, `212 555-0123`, also after `1`. The area and
  the exchange begin with 2 to 9 and do not end in 11 (ATIS-0300051).
- with the trunk prefix 0, as in most of Europe, Japan and Australia: `030/123456`, `(0351) 12345`, `0170-1234567`,
  `03-1234-5678`, `020 7946 0958`, `01 23 45 67 89`; 9 to 12 digits, see `_trunk_groups` for sizes and separators.

A number must not touch letters, nor other digits through `-`, `.`, `/` or `,`. Not found: numbers without separators
and without `+` or a label. Cost: at most 20 digits are read per number, and 20 bytes before it.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

import numpy as np

from datakit.annotate.personal import byte_classes, calling_codes, number_groups
from datakit.annotate.personal.byte_classes import DIGIT, WORD, at, before, has
from datakit.annotate.personal.number_groups import HYPHEN, PARENTHESIS, PERIOD, SLASH, SPACE, Groups
from datakit.text.numba_cache import cached_njit

LEAST_INTERNATIONAL, LEAST_LABELLED, MOST = 9, 7, 15  # digits
_CODE_SIZES = calling_codes.code_sizes()
_LABELS = calling_codes.label_table()
_PLUS, _OPEN = ord("+"), ord("(")
_JOINING = (44, 45, 46, 47, 58)  # , - . / :
_FOREIGN = (35, 36, 37, 38, 61, 64)  # before a number: # $ % & = @
_REFUSING = (37, 64)  # after a number: % @

kernel = cached_njit(byte_classes, calling_codes, number_groups)


@kernel
def _is_free(data: np.ndarray, start: int, first: int) -> bool:
    """Return True if the number that begins at `first` does not continue something before it."""
    lead = before(data, start, first)
    if has(lead, WORD) or lead in _FOREIGN or lead == _PLUS:
        return False
    return not (lead in (44, 45, 46, 47) and has(before(data, start, first - 1), WORD))


@kernel
def _is_closed(data: np.ndarray, end: int, stop: int) -> bool:
    """Return True if the number that ends at `end` does not continue after it."""
    follow = at(data, end, stop)
    if has(follow, WORD) or follow in _REFUSING:
        return False
    later = at(data, end + 1, stop)
    return not (follow in _JOINING and has(later, DIGIT)) and not (follow == 45 and has(later, WORD))


@kernel
def _is_alone(data: np.ndarray, start: int, stop: int, first: int, end: int) -> bool:
    """Return True if no digits are within two spaces of the number, as they are in tables and dumps of memory."""
    for _ in range(2):
        first -= int(before(data, start, first) == 32)
        end += int(at(data, end, stop) == 32)
    return not has(before(data, start, first), DIGIT) and not has(at(data, end, stop), DIGIT)


@kernel
def _international_groups(data: np.ndarray, stop: int, groups: Groups, count: int, prefix: int) -> int:
    """Return how many groups form an international number, whose first `prefix` digits are the 00 or none; else 0."""
    digits, total, best = groups.digits, 0, 0
    if sum_of(groups.sizes, count) < prefix + LEAST_INTERNATIONAL:
        return 0
    size = _CODE_SIZES[100 * digits[prefix] + 10 * digits[prefix + 1] + digits[prefix + 2]]
    if size == 0:
        return 0
    for i in range(count):
        total += groups.sizes[i]
        fits = total - prefix == 11 if size == 1 and digits[prefix] == 1 else total - prefix <= MOST
        if total - prefix >= LEAST_INTERNATIONAL and fits and _is_closed(data, groups.ends[i], stop):
            best = i + 1
    return best


@kernel
def sum_of(sizes: np.ndarray, count: int) -> int:
    """Return the number of digits in the first `count` groups."""
    total = 0
    for i in range(count):
        total += sizes[i]
    return total


@kernel
def is_labelled(data: np.ndarray, start: int, first: int) -> bool:
    """Return True if one of the labels and then one to four of ` .:#(+` come before `first`."""
    position, least = first, max(start, first - 4)
    while position > least and data[position - 1] in (32, 46, 58, 35, 40, 43):
        position -= 1
    if position == first:
        return False
    for row in range(len(_LABELS)):
        size = 0
        while _LABELS[row, -1 - size] and before(data, start, position - size) | 32 == _LABELS[row, -1 - size]:
            size += 1
        if _LABELS[row, -1 - size] == 0:
            lead = before(data, start, position - size)
            if not has(lead, WORD):
                return True
    return False


@kernel
def _labelled_groups(data: np.ndarray, stop: int, groups: Groups, count: int) -> int:
    """Return how many groups form a number after a label; 0 if none do."""
    total, best = 0, 0
    for i in range(count):
        total += groups.sizes[i]
        if LEAST_LABELLED <= total <= MOST and _is_closed(data, groups.ends[i], stop):
            best = i + 1
    return best


@kernel
def _american_groups(groups: Groups, count: int, opened: bool) -> int:
    """Return how many groups form a number of the NANP; 0 if none do. opened: a parenthesis precedes the number."""
    sizes, digits, separators = groups.sizes, groups.digits, groups.separators
    skip = int(sizes[0] == 1 and digits[0] == 1 and not opened)
    if count < 3 + skip or sizes[skip] != 3 or sizes[skip + 1] != 3 or sizes[skip + 2] != 4:
        return 0
    for part in (skip, skip + 3):
        if digits[part] < 2 or (digits[part + 1] == 1 and digits[part + 2] == 1):
            return 0
    left, right = separators[skip + 1], separators[skip + 2]
    if left == PARENTHESIS:
        enclosed = opened or (skip == 1 and separators[1] == PARENTHESIS)
        return 3 + skip if enclosed and right in (SPACE, HYPHEN, PERIOD) else 0
    same = left == right and left in (HYPHEN, PERIOD)
    return 3 + skip if same or (left == SPACE and right == HYPHEN) else 0


@kernel
def _trunk_groups(groups: Groups, count: int, opened: bool) -> int:
    """Return how many groups form a number with the trunk prefix 0; 0 if none do."""
    sizes, digits, separators = groups.sizes, groups.digits, groups.separators
    if digits[0] != 0 or sizes[0] < 2 or digits[1] == 0 or count < 2:
        return 0
    kind, total, best, pairs = separators[1], sizes[0], 0, sizes[0] == 2
    for i in range(1, min(count, 5)):
        total += sizes[i]
        pairs = pairs and sizes[i] == 2 and separators[i] == kind and kind in (SPACE, HYPHEN, PERIOD)
        if pairs and i == 4:
            return 5
        if pairs:
            continue  # 01 23 45 67 89; other forms have longer groups
        if kind == SLASH or (kind == PARENTHESIS and opened):
            if i > 1 and separators[i] not in (SPACE, HYPHEN):
                break
            fits = 3 <= sizes[0] <= 6 and 9 <= total <= 12
        elif kind == HYPHEN:
            if separators[i] != kind or i > 2:
                break
            two = i == 1 and 3 <= sizes[0] <= 5 and sizes[1] >= 6 and 9 <= total <= 12
            fits = two or (i == 2 and sizes[0] <= 5 and sizes[2] >= 3 and 10 <= total <= 11)
        elif kind == SPACE:
            if separators[i] != kind or sizes[i] < 3 or i > 3:
                break
            fits = 3 <= sizes[0] <= 5 and 10 <= total <= 11
        else:
            break
        best = i + 1 if fits else best
    return best


@kernel
def phone_span(data: np.ndarray, start: int, stop: int, first: int, groups: Groups, count: int) -> tuple[int, int]:
    """Return the start and the end of the telephone number that begins at the digit `first`, or at a `+` or `(` before
    it, in data[start:stop]; (0, 0) if there is none. groups, count: the number's groups, which have been read.
    """
    if count == 0:
        return 0, 0
    lead, digits = before(data, start, first), groups.digits
    opened = lead == _OPEN and count > 1 and groups.separators[1] == PARENTHESIS
    if lead == _PLUS:
        used = _international_groups(data, stop, groups, count, 0)
        free = not has(before(data, start, first - 1), WORD)
        return (first - 1, int(groups.ends[used - 1])) if used and free else (0, 0)
    begin = first - 1 if opened else first
    if not _is_free(data, start, begin):
        return 0, 0
    used = 0
    if digits[0] == 0 and digits[1] == 0 and 2 <= groups.sizes[0] <= 5 and count > 2:
        used = _international_groups(data, stop, groups, count, 2)
    if not used:
        used = _american_groups(groups, count, opened)
    if not used:
        used = _trunk_groups(groups, count, opened)
        if used and groups.sizes[0] == 2 and groups.sizes[1] == 2:
            used = used if _is_alone(data, start, stop, first, groups.ends[used - 1]) else 0
    if used and not _is_closed(data, groups.ends[used - 1], stop):
        used = 0
    if not used and is_labelled(data, start, first):
        used = _labelled_groups(data, stop, groups, count)
    return (begin, int(groups.ends[used - 1])) if used else (0, 0)
