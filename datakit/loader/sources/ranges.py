"""Sequences as runs of pieces, a piece being a range of the token axis: what every block comes down to, at any length.

A plain block has one piece a sequence; a packed one, one a document; what is joined at a change of length, as many as
there were unread pieces. `join` and `regroup` make the sequences of the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Pieces:
    """Sequence s consists of the pieces pointer[s]..pointer[s + 1]-1, in this order."""

    pointer: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    @property
    def sequences(self) -> int:
        return len(self.pointer) - 1

    def take(self, sequences: np.ndarray) -> Pieces:
        """These sequences, in this order."""
        counts = self.pointer[sequences + 1] - self.pointer[sequences]
        pointer = _cumulative(counts)
        index = np.arange(pointer[-1]) + np.repeat(self.pointer[sequences] - pointer[:-1], counts)
        return Pieces(pointer, self.starts[index], self.lengths[index])

    @classmethod
    def concatenate(cls, parts: Sequence[Pieces]) -> Pieces:
        """All sequences of all parts."""
        counts = [np.diff(part.pointer) for part in parts]
        return cls(
            _cumulative(np.concatenate(counts)),
            np.concatenate([part.starts for part in parts]),
            np.concatenate([part.lengths for part in parts]),
        )


def cut(starts: np.ndarray, lengths: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(starts, lengths, origin): each range in pieces of its size and a rest; `origin` is the range's index."""
    pieces = -(-lengths // sizes)
    origin = np.repeat(np.arange(len(starts)), pieces)
    offsets = (np.arange(len(origin)) - (np.cumsum(pieces) - pieces)[origin]) * sizes[origin]
    return starts[origin] + offsets, np.minimum(sizes[origin], lengths[origin] - offsets), origin


def plain(start: int, stop: int, length: int) -> Pieces:
    """The range start..stop-1 in sequences of `length`, the last one shorter."""
    starts = np.arange(start, stop, length, dtype=np.int64)
    return Pieces(np.arange(len(starts) + 1), starts, np.minimum(length, stop - starts))


def merged(starts: np.ndarray, lengths: np.ndarray, borders: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Ranges in token order, neighbours that touch made one; not across a position in `borders`."""
    order = np.argsort(starts, kind="stable")
    starts, lengths = starts[order], lengths[order]
    apart = np.ones(len(starts), bool)
    apart[1:] = starts[1:] != starts[:-1] + lengths[:-1]
    if borders is not None:
        apart |= np.isin(starts, borders)
    first = np.flatnonzero(apart)
    return starts[first], np.add.reduceat(lengths, first) if len(first) else lengths


def join(starts: np.ndarray, lengths: np.ndarray, length: int) -> Pieces:
    """Ranges, end to end, as sequences of `length`: only the last one is shorter."""
    ends = np.cumsum(lengths)
    begins = ends - lengths
    total = int(ends[-1]) if len(ends) else 0
    at = np.union1d(begins, np.arange(0, total, length, dtype=np.int64))  # where a piece begins on the joined axis
    origin = np.searchsorted(ends, at, side="right")
    sizes = np.diff(np.append(at, total))
    pointer = np.searchsorted(at, np.append(np.arange(0, total, length), total))
    return Pieces(pointer.astype(np.int64), starts[origin] + at - begins[origin], sizes)


def groups_of(lengths: np.ndarray, size: int) -> list[slice]:
    """Consecutive items in groups that begin in the same stretch of `size` tokens."""
    group = (np.cumsum(lengths) - lengths) // size
    edges = np.flatnonzero(np.diff(group, prepend=-1, append=-1))
    return [slice(a, b) for a, b in pairwise(edges.tolist())]


def _cumulative(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
