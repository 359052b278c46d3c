"""Reads a number that is written in groups, such as `4111 1111 1111 1111` or `(030) 123-456`.

Separators between two groups: a space (or a no-break space, U+00A0), `-`, `.`, `/`, or a parenthesis, which may have a
space or `-` beside it. At most MOST_DIGITS digits and MOST_GROUPS groups are read, so the cost per number is bounded.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.annotate.personal import byte_classes
from datakit.annotate.personal.byte_classes import DIGIT, at, has
from datakit.text.numba_cache import cached_njit

MOST_DIGITS, MOST_GROUPS = 20, 12
LEAST_ALONE = 7  # digits of a telephone number or card that is written in one group
# separators, by class
NONE, SPACE, HYPHEN, PERIOD, SLASH, PARENTHESIS = range(6)

kernel = cached_njit(byte_classes)


class Groups(NamedTuple):
    """The groups of a number; scratch memory that is used again for each number.

    digits: the digits' values, int64 [MOST_DIGITS]. sizes, ends: the number of digits in each group and the position
    after it, int64 [MOST_GROUPS]. separators: the class of the separator before each group, int64 [MOST_GROUPS].
    """

    digits: np.ndarray
    sizes: np.ndarray
    ends: np.ndarray
    separators: np.ndarray


def new_groups() -> Groups:
    """Return empty scratch memory."""
    return Groups(*(np.zeros(size, np.int64) for size in (MOST_DIGITS, MOST_GROUPS, MOST_GROUPS, MOST_GROUPS)))


@kernel
def _space_size(data: np.ndarray, position: int, stop: int) -> int:
    """Return the size of the space or no-break space at a position; 0 if there is none."""
    byte = at(data, position, stop)
    if byte == 0xC2 and at(data, position + 1, stop) == 0xA0:
        return 2
    return 1 if byte == 32 else 0


@kernel
def separator(data: np.ndarray, position: int, stop: int) -> tuple[int, int]:
    """Return the class of the separator at a position, and the position after it.

    If no digit follows a separator, or there is none, return (NONE, position).
    """
    after = position + _space_size(data, position, stop)
    kind = SPACE if after > position else NONE
    byte = at(data, after, stop)
    if byte in (40, 41):
        after, kind = after + 1, PARENTHESIS
        space = _space_size(data, after, stop)
        after += space if space else int(at(data, after, stop) == 45 or at(data, after, stop) == 47)
        if byte == 41 and at(data, after, stop) == 40:
            after += 1
    elif kind == NONE and byte in (45, 46, 47):
        after, kind = after + 1, HYPHEN + byte - 45
        if at(data, after, stop) == 40:
            after += 1
    return (kind, after) if has(at(data, after, stop), DIGIT) else (NONE, position)


@kernel
def is_short(data: np.ndarray, first: int, stop: int) -> bool:
    """Return True if the number at `first` has one group of fewer than LEAST_ALONE digits, like most numbers."""
    end = first + 1
    while end < first + LEAST_ALONE and has(at(data, end, stop), DIGIT):
        end += 1
    return end < first + LEAST_ALONE and separator(data, end, stop)[0] == NONE


@kernel
def read_groups(data: np.ndarray, first: int, stop: int, groups: Groups) -> int:
    """Read the number that begins at the digit `first`; return the number of its whole groups, 0 if the first group is
    longer than MOST_DIGITS. A group that would exceed the limits is left out, like all that follow.
    """
    count, total, position, kind = 0, 0, first, NONE
    while count < MOST_GROUPS:
        begin = position
        while has(at(data, position, stop), DIGIT) and total + position - begin < MOST_DIGITS:
            groups.digits[total + position - begin] = data[position] - 48
            position += 1
        if has(at(data, position, stop), DIGIT):
            break
        groups.sizes[count], groups.ends[count], groups.separators[count] = position - begin, position, kind
        total, count = total + position - begin, count + 1
        kind, position = separator(data, position, stop)
        if kind == NONE:
            break
    return count
