"""Implements large-star and small-star, the two operations that find connected components in rounds (Kiveris et al.,
"Connected Components in MapReduce and Beyond", 2014), as pure functions on edges.

An edge is a pair (node, smaller node); both are row numbers. In a round, large-star connects the larger neighbors of
each node with the smallest node of its neighborhood, and small-star connects each node and its smaller neighbors with
the smallest of these neighbors. Both operations preserve the components, and neither increases the number of edges. All
edges of a node must be in one task, but they need not be sorted or be in memory together: first, `Neighborhoods` finds
each node's smallest neighbor from all edges, and then each edge is replaced on its own.

If a node is no node's smaller neighbor after large-star, it is a leaf after small-star: its only edge leads to the
smallest of its neighbors. Such a node is *retired*: its edge is stored separately, and the node takes no part in later
rounds. The largest node is always retired, so the rounds end. If row numbers are in random order, as within a source,
the number of nodes and the cost fall by a constant factor in each round. The leaves of a star are all retired in one
round. In the worst case, a chain whose row numbers ascend, each round only doubles the length of the edges, as in the
paper.

The edges of a piece may be replaced by any other edges that connect the same nodes, so `spanning_forest` reduces each
piece before it is written.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.dedup.clusters.components import spanning_forest
from datakit.dedup.clusters.node_tables import Neighborhoods


class Edges(NamedTuple):
    """Edges between node[i] and smaller[i], both uint64; smaller[i] < node[i]."""

    node: np.ndarray
    smaller: np.ndarray


def both_directions(edges: Edges) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs (node, neighbor) from which large-star starts: two for each edge."""
    return np.concatenate([edges.node, edges.smaller]), np.concatenate([edges.smaller, edges.node])


def large_star(hoods: Neighborhoods, nodes: np.ndarray, others: np.ndarray) -> Edges:
    """Connect the larger neighbors among others[i] with the smallest node in the neighborhood of nodes[i]. hoods: the
    complete neighborhoods of these nodes. The result is reduced to a spanning forest.
    """
    larger = others > nodes
    return Edges(*spanning_forest(others[larger], hoods.smallest(nodes[larger])))


def with_marks(edges: Edges) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs (node, smaller neighbor) from which small-star starts. Each node that is a smaller neighbor is
    also paired with itself, which marks it as a node that must not be retired.
    """
    marked = np.unique(edges.smaller)
    return np.concatenate([edges.node, marked]), np.concatenate([edges.smaller, marked])


def small_star(hoods: Neighborhoods, nodes: np.ndarray, others: np.ndarray) -> Edges:
    """Connect each smaller neighbor others[i] of nodes[i] with the smallest of the node's neighbors. hoods: all smaller
    neighbors of these nodes. The result is reduced to a spanning forest.
    """
    smallest = hoods.smallest(nodes)
    moved = (others < nodes) & (others != smallest)
    return Edges(*spanning_forest(others[moved], smallest[moved]))


def divide(nodes: np.ndarray, smallest: np.ndarray, marked: np.ndarray) -> tuple[Edges, Edges]:
    """Connect each node with its smallest neighbor, as small-star does. Return the edges for the next round, and the
    edges of the nodes that are retired.
    """
    stays, retired = (smallest < nodes) & marked, (smallest < nodes) & ~marked
    return Edges(nodes[stays], smallest[stays]), Edges(nodes[retired], smallest[retired])
