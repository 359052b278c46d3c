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

DEEPEST = 48  # levels of nesting in a record; Arrow's IPC stops at 64
DEEP = 2  # what the kernel calls a line with more


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
    from datakit.normalize import kernels  # brings numba, which only tasks need

    data = np.frombuffer(block, np.uint8)
    breaks = np.flatnonzero(data == 10)
    if not len(breaks) or breaks[-1] != len(data) - 1:
        breaks = np.append(breaks, len(data))
    places, kinds = np.zeros((2, len(breaks)), np.int64), np.zeros(len(breaks), np.uint8)
    count = kernels.scan_lines(data, breaks, DEEPEST, places, kinds)
    return Lines(places[0, :count], places[1, :count], kinds[:count])


def warm() -> None:
    """Compile the kernels, or load them from numba's cache on disk."""
    find_lines(b'{"a": 1}\n')
