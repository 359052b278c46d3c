"""Represents sequences as lists of pieces (ranges of the token axis), and cuts, merges, joins and groups such ranges.

A sequence from a plain block is one piece. A sequence from a packed block has one piece per document. When the sequence
length changes, unread pieces are joined or packed into new sequences, which may consist of several such pieces each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from datakit.cache.lengths import starts_of


@dataclass(frozen=True)
class Pieces:
    """Sequences made of pieces. Sequence s consists of pieces pointer[s]..pointer[s + 1]-1, in this order."""

    pointer: np.ndarray  # int64 [sequences + 1]
    starts: np.ndarray  # int64 [pieces]
    lengths: np.ndarray  # int64 [pieces]

    @property
    def sequences(self) -> int:
        return len(self.pointer) - 1

    def take(self, sequences: np.ndarray) -> Pieces:
        counts = self.pointer[sequences + 1] - self.pointer[sequences]
        pointer = starts_of(counts)
        index = np.arange(pointer[-1]) + np.repeat(self.pointer[sequences] - pointer[:-1], counts)
        return Pieces(pointer, self.starts[index], self.lengths[index])

    @classmethod
    def concatenate(cls, parts: Sequence[Pieces]) -> Pieces:
        counts = [np.diff(part.pointer) for part in parts]
        return cls(
            starts_of(np.concatenate(counts)),
            np.concatenate([part.starts for part in parts]),
            np.concatenate([part.lengths for part in parts]),
        )


def cut(starts: np.ndarray, lengths: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut each range i into pieces of sizes[i] tokens (the last may be shorter); return their (starts, lengths, i)."""
    pieces = -(-lengths // sizes)
    origin = np.repeat(np.arange(len(starts)), pieces)
    offsets = (np.arange(len(origin)) - (np.cumsum(pieces) - pieces)[origin]) * sizes[origin]
    return starts[origin] + offsets, np.minimum(sizes[origin], lengths[origin] - offsets), origin


def plain(start: int, stop: int, length: int) -> Pieces:
    """Cut the range start..stop-1 into sequences of `length` tokens, the last of which may be shorter."""
    starts = np.arange(start, stop, length, dtype=np.int64)
    return Pieces(np.arange(len(starts) + 1), starts, np.minimum(length, stop - starts))


def merged(starts: np.ndarray, lengths: np.ndarray, borders: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Sort ranges by start; merge adjacent ones, but never across a position in `borders`. Return (starts, lengths)."""
    order = np.argsort(starts, kind="stable")
    starts, lengths = starts[order], lengths[order]
    apart = np.ones(len(starts), bool)
    apart[1:] = starts[1:] != starts[:-1] + lengths[:-1]
    if borders is not None:
        apart |= np.isin(starts, borders)
    first = np.flatnonzero(apart)
    return starts[first], np.add.reduceat(lengths, first) if len(first) else lengths


def join(starts: np.ndarray, lengths: np.ndarray, length: int) -> Pieces:
    """Lay ranges end to end and cut them into sequences of `length` tokens; only the last sequence may be shorter."""
    ends = np.cumsum(lengths)
    joined_starts = ends - lengths
    total = int(ends[-1]) if len(ends) else 0
    at = np.union1d(joined_starts, np.arange(0, total, length, dtype=np.int64))  # where pieces start on the joined axis
    origin = np.searchsorted(ends, at, side="right")
    sizes = np.diff(np.append(at, total))
    pointer = np.searchsorted(at, np.append(np.arange(0, total, length), total))
    return Pieces(pointer.astype(np.int64), starts[origin] + at - joined_starts[origin], sizes)


def groups_of(lengths: np.ndarray, size: int) -> list[slice]:
    """Lay items end to end, and return a slice for each group of items that start in the same span of `size` tokens."""
    group = (np.cumsum(lengths) - lengths) // size
    edges = np.flatnonzero(np.diff(group, prepend=-1, append=-1))
    return [slice(a, b) for a, b in pairwise(edges.tolist())]
