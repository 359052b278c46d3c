"""Components are exact, however edges are distributed over buckets and forests."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from datakit.dedup.clusters.components import bucket_edges, possibly_shared, spanning_forest

EDGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=60)
FAR = np.uint64(2**40)  # row numbers can be large


def forest_of(edges: list[tuple[int, int]]) -> dict[int, int]:
    """Return the smallest row of each row's component, by the kernel."""
    pairs = np.array(edges, np.uint64).reshape(-1, 2) + FAR
    rows, roots = spanning_forest(pairs[:, 0].copy(), pairs[:, 1].copy())
    assert (np.diff(rows.astype(np.int64)) > 0).all(), "ascending and unique"
    return dict(zip((rows - FAR).tolist(), (roots - FAR).tolist(), strict=True))


def by_hand(edges: list[tuple[int, int]]) -> dict[int, int]:
    """Return the same by merging sets."""
    groups: list[set[int]] = []
    for edge in edges:
        touched = [group for group in groups if group & set(edge)]
        groups = [group for group in groups if group not in touched] + [set(edge).union(*touched)]
    return {row: min(group) for group in groups for row in group if row != min(group)}


@given(EDGES)
@settings(max_examples=60)
def test_forests_have_the_components_of_their_edges(edges: list[tuple[int, int]]) -> None:
    assert forest_of(edges) == by_hand(edges)


@given(EDGES, st.data())
@settings(max_examples=60)
def test_forests_merge_in_any_order_and_grouping(edges: list[tuple[int, int]], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(edges))
    cut = data.draw(st.integers(0, len(edges)))
    parts = [list(forest_of(part).items()) for part in (shuffled[:cut], shuffled[cut:])]
    assert forest_of(parts[1] + parts[0]) == by_hand(edges)


def test_large_random_graphs_agree_with_scipy() -> None:
    generator = np.random.default_rng(3)
    for nodes, edges in ((1000, 400), (1000, 900), (100_000, 80_000)):
        left, right = generator.integers(0, nodes, (2, edges), dtype=np.uint64)
        rows, roots = spanning_forest(left, right)
        label = np.arange(nodes)
        label[rows.astype(np.int64)] = roots.astype(np.int64)
        matrix = coo_array((np.ones(edges), (left.astype(np.int64), right.astype(np.int64))), shape=(nodes, nodes))
        count, theirs = connected_components(matrix, directed=False)
        assert len(np.unique(label)) == count
        smallest = np.full(count, nodes)
        np.minimum.at(smallest, theirs, np.arange(nodes))
        assert np.array_equal(label, smallest[theirs])


def test_chains_of_a_million_are_one_component() -> None:
    order = np.random.default_rng(1).permutation(1_000_000).astype(np.uint64)
    rows, roots = spanning_forest(order[:-1], order[1:])
    assert len(rows) == 999_999
    assert not roots.any()


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 200)), unique=True, max_size=60), st.data())
@settings(max_examples=60)
def test_folding_over_runs_connects_shared_keys(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    """One row per key is kept while folding; the edges connect all rows of a key, whatever the runs."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    keys, smallest = np.empty(0, np.uint64), np.empty(0, np.uint64)
    edges: list[tuple[int, int]] = []
    for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        run = np.array(rows[start:stop], np.uint64).reshape(-1, 2)
        keys, smallest, left, right = bucket_edges(
            np.concatenate([keys, run[:, 0]]), np.concatenate([smallest, run[:, 1]])
        )
        edges += zip(left.tolist(), right.tolist(), strict=True)
    groups: dict[int, list[int]] = {}
    for key, row in rows:
        groups.setdefault(key, []).append(row)
    assert dict(zip(keys.tolist(), smallest.tolist(), strict=True)) == {
        key: min(group) for key, group in groups.items()
    }
    stars = [(min(group), row) for group in groups.values() for row in group if row != min(group)]
    assert by_hand(edges) == by_hand(stars)


@given(st.lists(st.integers(0, 1 << 12), max_size=60), st.integers(0, 63))
def test_every_repeated_key_is_possibly_shared(numbers: list[int], shift: int) -> None:
    keys = np.array(numbers, np.uint64) << np.uint64(shift)
    _, which, counts = np.unique(keys, return_inverse=True, return_counts=True)
    assert possibly_shared(keys)[counts[which] > 1].all()


def test_few_unique_keys_are_possibly_shared() -> None:
    keys = np.random.default_rng(5).integers(0, 1 << 64, 100_000, np.uint64)
    assert 0.05 < possibly_shared(keys).mean() < 0.25
