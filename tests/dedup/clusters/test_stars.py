"""Rounds of stars find the same components as union-find, whatever the size of the pieces in which edges are read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.dedup.clusters.components import spanning_forest
from datakit.dedup.clusters.node_tables import Components, Neighborhoods
from datakit.dedup.clusters.stars import Edges, both_directions, divide, large_star, small_star, with_marks

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=80)
FAR = np.uint64(2**40)  # row numbers can be large
Pairs = tuple[np.ndarray, np.ndarray]


def forest(left: np.ndarray, right: np.ndarray) -> dict[int, int]:
    """Return the component's smallest row for each other row of the component, by union-find on all edges at once."""
    return dict(zip(*(values.tolist() for values in spanning_forest(left, right)), strict=True))


def in_pieces(pairs: Pairs, size: int) -> list[Pairs]:
    return [(pairs[0][i : i + size], pairs[1][i : i + size]) for i in range(0, len(pairs[0]), size)]


def star(operation, pairs: Pairs, size: int) -> tuple[Neighborhoods, Edges]:
    """Read all pairs twice, a piece at a time."""
    hoods = Neighborhoods()
    for piece in in_pieces(pairs, size):
        hoods.fold(*piece)
    found = [operation(hoods, *piece) for piece in in_pieces(pairs, size)]
    none = np.empty(0, np.uint64)
    return hoods, Edges(*(np.concatenate([none, *values]) for values in zip(*found, strict=True)))


def by_rounds(left: np.ndarray, right: np.ndarray, size: int) -> tuple[dict[int, int], list[int]]:
    """Return the label of each row that is not the smallest of its component, and how many nodes each round retired."""
    edges, rounds = Edges(*spanning_forest(left, right)) if size > len(left) else _distinct(left, right), []
    while len(edges.node):
        before = set(edges.node.tolist()) | set(edges.smaller.tolist())
        _, edges = star(large_star, both_directions(edges), size)
        hoods, moved = star(small_star, with_marks(edges), size)
        parts = [divide(*piece) for piece in hoods.pieces()]
        retired = {node: to for _, gone in parts for node, to in zip(*map(np.ndarray.tolist, gone), strict=True)}
        edges = Edges(*(np.concatenate([moved[i], *(stays[i] for stays, _ in parts)]) for i in (0, 1)))
        left_over = set(edges.node.tolist()) | set(edges.smaller.tolist())
        assert max(before) in retired, "the largest node is retired, so the rounds end"
        assert not left_over & set(retired)
        assert (edges.smaller < edges.node).all()
        rounds.append(retired)
    labels: dict[int, int] = {}
    for retired in reversed(rounds):
        labels |= {node: labels.get(to, to) for node, to in retired.items()}
    return labels, [len(retired) for retired in rounds]


def _distinct(left: np.ndarray, right: np.ndarray) -> Edges:
    apart = left != right
    return Edges(np.maximum(left, right)[apart], np.minimum(left, right)[apart])


@given(PAIRS, st.integers(1, 100))
@settings(max_examples=200, deadline=None)
def test_rounds_find_the_components_of_union_find(pairs: list[tuple[int, int]], size: int) -> None:
    left, right = (np.array(pairs, np.uint64).reshape(-1, 2) + FAR).T.copy()
    assert by_rounds(left, right, size)[0] == forest(left, right)


@given(PAIRS, st.integers(1, 100))
@settings(max_examples=100, deadline=None)
def test_components_joined_in_pieces_are_those_of_union_find(pairs: list[tuple[int, int]], size: int) -> None:
    left, right = (np.array(pairs, np.uint64).reshape(-1, 2) + FAR).T.copy()
    components = Components()
    for piece in in_pieces((left, right), size):
        components.join(*piece)
    found = {
        node: root
        for nodes, roots in components.pieces()
        for node, root in zip(nodes.tolist(), roots.tolist(), strict=True)
    }
    expected = {row: row for row in {*left.tolist(), *right.tolist()}} | forest(left, right)
    assert found == expected
    assert len(components) == len(expected)


def test_tables_grow() -> None:
    """Marks and smallest neighbors survive each growth, up to ten thousand times the initial number of slots."""
    nodes = np.random.default_rng(5).permutation(300_000).astype(np.uint64) + np.uint64(1)
    hoods, components = Neighborhoods(), Components()
    for some in np.array_split(nodes, 40):
        hoods.fold(some, some - some % np.uint64(3))
        components.join(some, some - some % np.uint64(3))
    seen = [np.concatenate(values) for values in zip(*hoods.pieces(), strict=True)]
    assert np.array_equal(np.sort(seen[0]), np.arange(1, 300_001))
    assert np.array_equal(seen[1], seen[0] - seen[0] % 3)
    assert np.array_equal(seen[2], seen[0] % 3 == 0)
    assert np.array_equal(hoods.smallest(nodes), nodes - nodes % 3)
    for rows, roots in components.pieces():
        assert np.array_equal(roots, rows - rows % 3)


SHAPES = {
    "a chain in random order": lambda rows: (rows[:-1], rows[1:]),
    "a chain in ascending order": lambda rows: (np.sort(rows)[:-1], np.sort(rows)[1:]),
    "a star around its largest row": lambda rows: (np.sort(rows)[:-1], np.full(len(rows) - 1, rows.max())),
    "a chain of stars": lambda rows: (rows[1:], rows[1:] - rows[1:] % np.uint64(100) + np.uint64(100)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_rounds_are_few_whatever_the_shape(shape: str) -> None:
    """There are at most two rounds for each doubling of the number of nodes."""
    rows = np.random.default_rng(2).permutation(1 << 14).astype(np.uint64)
    left, right = SHAPES[shape](rows)
    labels, retired = by_rounds(left, right, 1000)
    assert labels == forest(left, right)
    assert len(retired) <= 2 * 14


def test_a_star_is_retired_in_one_round() -> None:
    spokes = np.arange(1, 100_000, dtype=np.uint64)
    labels, retired = by_rounds(spokes, np.zeros_like(spokes), 5000)
    assert retired == [99_999]
    assert set(labels.values()) == {0}


def test_random_chains_shrink_by_a_constant_factor() -> None:
    """All rounds together therefore cost only a few times as much as the first one."""
    rows = np.random.default_rng(4).permutation(100_000).astype(np.uint64)
    left, retired = 100_000, by_rounds(rows[:-1], rows[1:], 3000)[1]
    for gone in retired[:-1]:
        assert gone >= 0.4 * left
        left -= gone
