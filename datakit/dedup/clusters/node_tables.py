"""Provides tables of nodes (row numbers, uint64) for edges that are read piece by piece: `Neighborhoods` holds the
smallest neighbor of each node, and `Components` the smallest node of each component.

Memory depends on the number of distinct nodes, not on the number of edges: a node with 50 million neighbors takes one
slot. A slot takes up to 17 bytes, and between 3/8 and 3/4 of the slots are in use. While a table grows, the old slots
and the new slots exist together, so a node takes at most `pairs.NODE_BYTES`. Cost: about 0.1 microseconds per edge.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from datakit.dedup.clusters import node_kernels
from datakit.dedup.clusters.node_kernels import EMPTY

LOAD = 0.75  # the largest share of the slots that may be in use
FEWEST_SLOTS = 1 << 10
PIECE_SLOTS = 1 << 19  # slots read at a time


class Neighborhoods:
    """Holds the smallest node of each node's neighborhood (the node itself and its neighbors), and which nodes are
    marked.
    """

    def __init__(self) -> None:
        self._count = 0
        self._allocate(FEWEST_SLOTS)

    def _allocate(self, slots: int) -> None:
        self._keys = np.full(slots, EMPTY)
        self._smallest, self._marked = np.empty(slots, np.uint64), np.empty(slots, bool)

    def __len__(self) -> int:
        return self._count

    def fold(self, nodes: np.ndarray, others: np.ndarray) -> None:
        """Add the neighbors others[i] of nodes[i]. A pair of equal nodes adds the node, and marks it."""
        slots = _slots_for(self._count + len(nodes))
        if slots > len(self._keys):
            old = self._keys, self._smallest, self._marked
            self._allocate(slots)
            node_kernels.copy(*old, self._keys, self._smallest, self._marked)
        self._count += node_kernels.fold(self._keys, self._smallest, self._marked, nodes, others)

    def smallest(self, nodes: np.ndarray) -> np.ndarray:
        """Return the smallest node of each node's neighborhood: the node itself if it is not in the table."""
        found = np.empty(len(nodes), np.uint64)
        node_kernels.look_up(self._keys, self._smallest, nodes, found)
        return found

    def pieces(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield all nodes, the smallest node of each neighborhood, and whether each node is marked, piece by piece."""
        for first in range(0, len(self._keys), PIECE_SLOTS):
            used = first + np.flatnonzero(self._keys[first : first + PIECE_SLOTS] != EMPTY)
            yield self._keys[used], self._smallest[used], self._marked[used]


class Components:
    """Holds the connected components of the edges joined so far."""

    def __init__(self) -> None:
        self._count = 0
        self._allocate(FEWEST_SLOTS)

    def _allocate(self, slots: int) -> None:
        self._keys, self._parents = np.full(slots, EMPTY), np.empty(slots, np.int64)

    def __len__(self) -> int:
        return self._count

    def join(self, left: np.ndarray, right: np.ndarray) -> None:
        """Join the component of left[i] and that of right[i], for all i."""
        slots = _slots_for(self._count + 2 * len(left))
        if slots > len(self._keys):
            old = self._keys, self._parents
            self._allocate(slots)
            for nodes, smallest in _components(*old):
                node_kernels.join(self._keys, self._parents, nodes, smallest)
        self._count += node_kernels.join(self._keys, self._parents, left, right)

    def pieces(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield all nodes piece by piece, each with the smallest node of its component."""
        yield from _components(self._keys, self._parents)


def _components(keys: np.ndarray, parents: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for first in range(0, len(keys), PIECE_SLOTS):
        nodes = keys[first : first + PIECE_SLOTS]
        roots, used = np.empty(len(nodes), np.uint64), nodes != EMPTY
        node_kernels.roots(keys, parents, first, roots)
        yield nodes[used], roots[used]


def _slots_for(nodes: int) -> int:
    """Return the number of slots, a power of two, that a table for this many nodes needs."""
    return max(FEWEST_SLOTS, 1 << int(nodes / LOAD).bit_length())


def warm() -> None:
    """Load the kernels from numba's cache, or compile them, so that no task has to do so."""
    nodes = np.arange(FEWEST_SLOTS, dtype=np.uint64)
    hoods, components = Neighborhoods(), Components()
    for table in (hoods.fold, components.join):
        table(nodes, nodes)
        table(nodes + np.uint64(1), nodes)
    hoods.smallest(nodes)
    list(hoods.pieces())
    list(components.pieces())
