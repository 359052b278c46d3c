"""Finds the nonblank lines of a chunk of JSON Lines, limits the nesting of a record to 48 levels, and marks lines that
must not reach the columnar parser. Arrow's JSON parser reads a sequence of values rather than lines, and two kinds of
input crash it (in pyarrow 26): `null` in place of an object, and about 100,000 nested arrays. If every line starts with
`{`, ends with `}` and is not deeply nested, then no object spans two lines, because inside a JSON object `}` is never
directly followed by `{`. If there are also as many objects as lines, each line is one object. Cost: a vectorized search
for line ends and a vectorized count of brackets. Nesting is measured only in lines with many brackets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

DEEPEST = 48  # maximum depth of nesting in a record; Arrow IPC allows 64
DEEP = 2  # equals `kernels.DEEP`; repeated here so that importing this module does not import numba


@dataclass(frozen=True)
class Lines:
    """The nonblank lines of a chunk: each line's bytes [start, end) without surrounding white space, and its kind."""

    starts: np.ndarray
    ends: np.ndarray
    kinds: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def plain(self) -> bool:
        """True if the columnar parser may read all these lines."""
        return not self.kinds.any()


def find_lines(chunk: bytes | memoryview) -> Lines:
    """Return the nonblank lines of a chunk."""
    # imported only here: it imports numba, which a command that only plans does not need
    from datakit.normalize import kernels

    data = np.frombuffer(chunk, np.uint8)
    breaks = np.flatnonzero(data == 10)
    if not len(breaks) or breaks[-1] != len(data) - 1:
        breaks = np.append(breaks, len(data))
    places, kinds = np.zeros((2, len(breaks)), np.int64), np.zeros(len(breaks), np.uint8)
    count = kernels.scan_lines(data, breaks, DEEPEST, places, kinds)
    return Lines(places[0, :count], places[1, :count], kinds[:count])


def warm() -> None:
    """Compile the kernel, or load it from numba's cache on disk."""
    find_lines(b'{"a": 1}\n')
