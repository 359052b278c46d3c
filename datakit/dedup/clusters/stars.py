"""Large-star and small-star, the two operations that find connected components in rounds (Kiveris et al., "Connected
Components in MapReduce and Beyond", 2014), as pure functions on edges.

An edge is a pair (node, smaller node); both are row numbers. In a round, large-star joins the larger neighbors of every
node with the smallest node of its neighborhood, and small-star joins a node's smaller neighbors, and the node itself,
with the smallest of them. Both keep the components, and neither increases the number of edges. The operations need the
edges grouped by node, but not sorted and never all at once: first `Neighborhoods` folds all edges to find each node's
smallest neighbor, and then each edge is replaced on its own.

A node that after large-star is nobody's smaller neighbor is a leaf after small-star: its only edge leads to the
smallest of its neighbors. It is *retired*: this edge is put aside, and the node takes part in no further round. The
largest node is always retired, so the rounds end. If row numbers are in random order, as within a source, the number of
nodes falls by a constant factor in each round, and so does the cost; a star is retired at once. In the worst order (a
chain whose row numbers ascend), the lengths of the edges double instead, as in the paper.

The edges of a piece may be replaced by any others that connect the same nodes, so `spanning_forest` reduces each piece
before it is passed on.
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
    """Join the larger neighbors among others[i] with the smallest node in the neighborhood of nodes[i]. `hoods` holds
    the whole neighborhoods of these nodes. The result is reduced to a spanning forest.
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
    """Join each smaller neighbor others[i] of nodes[i] with the smallest of the node's neighbors. `hoods` holds all
    smaller neighbors of these nodes. The result is reduced to a spanning forest.
    """
    smallest = hoods.smallest(nodes)
    moved = (others < nodes) & (others != smallest)
    return Edges(*spanning_forest(others[moved], smallest[moved]))


def divide(nodes: np.ndarray, smallest: np.ndarray, marked: np.ndarray) -> tuple[Edges, Edges]:
    """Join each node with its smallest neighbor, as small-star does. Returns the edges that remain for the next round
    and those of the nodes that are retired.
    """
    stays, retired = (smallest < nodes) & marked, (smallest < nodes) & ~marked
    return Edges(nodes[stays], smallest[stays]), Edges(nodes[retired], smallest[retired])
