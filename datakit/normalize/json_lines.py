"""Finds the lines of a block, and those that must not reach the columnar parser.

Arrow's JSON parser reads a sequence of values, not lines, and two inputs crash it (measured with pyarrow 26: `null`
where an object should be, and some 100,000 nested arrays). If every line begins with `{`, ends with `}` and is not
deep, then no object spans two lines (inside an object, JSON has no `}` directly before a `{`), so as many objects as
lines means one object a line.

Cost: a vectorized search for line ends and a vectorized count of brackets; only lines with many brackets are walked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

DEEPEST = 48  # levels of nesting in a record; Arrow's IPC stops at 64
PLAIN, ODD, DEEP = 0, 1, 2


@dataclass(frozen=True)
class Lines:
    """The lines of a block that are not blank: [start, end) without white space at the ends, and their kinds."""

    starts: np.ndarray
    ends: np.ndarray
    kinds: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def plain(self) -> bool:
        """Whether all of them may be given to the columnar parser."""
        return not self.kinds.any()


def find_lines(block: bytes | memoryview) -> Lines:
    """The lines of `block`."""
    data = np.frombuffer(block, np.uint8)
    breaks = np.flatnonzero(data == 10)
    if not len(breaks) or breaks[-1] != len(data) - 1:
        breaks = np.append(breaks, len(data))
    starts, ends, kinds = (np.zeros(len(breaks), kind) for kind in (np.int64, np.int64, np.uint8))
    count = _scan(data, breaks, starts, ends, kinds)
    return Lines(starts[:count], ends[:count], kinds[:count])


def warm() -> None:
    """Compile the kernels, or load them from numba's cache on disk."""
    find_lines(b'{"a": 1}\n')


@njit(cache=True, nogil=True)
def _is_space(octet):  # pragma: no cover - compiled
    return octet in (32, 9, 13)


@njit(cache=True, nogil=True)
def _depth(data, start, end):  # pragma: no cover - compiled
    """The deepest nesting in data[start:end], strings left out."""
    depth = deepest = 0
    i = start
    while i < end:
        octet = data[i]
        if octet == 34:
            i += 1
            while i < end and data[i] != 34:
                i += 2 if data[i] == 92 else 1
        elif octet in (123, 91):
            depth += 1
            deepest = max(deepest, depth)
        elif octet in (125, 93):
            depth -= 1
        i += 1
    return deepest


@njit(cache=True, nogil=True)
def _scan(data, breaks, starts, ends, kinds):  # pragma: no cover - compiled
    count = 0
    position = 0
    for number in range(len(breaks)):
        start, end = position, breaks[number]
        position = end + 1
        while start < end and _is_space(data[start]):
            start += 1
        while end > start and _is_space(data[end - 1]):
            end -= 1
        if start == end:
            continue
        opened = 0
        for i in range(start, end):
            opened += (data[i] == 123) | (data[i] == 91)
        kind = PLAIN if data[start] == 123 and data[end - 1] == 125 else ODD
        if opened > DEEPEST and _depth(data, start, end) > DEEPEST:
            kind = DEEP
        starts[count], ends[count], kinds[count] = start, end, kind
        count += 1
    return count
