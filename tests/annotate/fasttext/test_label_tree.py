"""The tree of labels is a Huffman tree."""

from __future__ import annotations

import heapq

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datakit.annotate.fasttext.label_tree import label_tree

COUNTS = st.lists(st.integers(0, 10**6), min_size=1, max_size=40).map(lambda found: sorted(found, reverse=True))


def depths(children: np.ndarray, labels: int) -> dict[int, int]:
    """The depth of each leaf; every node must be reached once."""
    found, waiting, seen = dict[int, int](), [(2 * labels - 2, 0)], 0
    while waiting:
        node, depth = waiting.pop()
        seen += 1
        if node < labels:
            found[node] = depth
        else:
            waiting += [(int(child), depth + 1) for child in children[node - labels]]
    assert seen == 2 * labels - 1
    return found


def shortest_code(counts: list[int]) -> int:
    """The sum of count times depth in an optimal tree."""
    heap, total = list(counts), 0
    heapq.heapify(heap)
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        total += merged
        heapq.heappush(heap, merged)
    return total


@given(counts=COUNTS)
def test_the_tree_has_the_shortest_code(counts: list[int]) -> None:
    found = depths(label_tree(np.array(counts)), len(counts))
    assert sum(counts[leaf] * depth for leaf, depth in found.items()) == shortest_code(counts)


@given(counts=st.lists(st.integers(0, 10**15 - 1), min_size=1, max_size=20))
def test_counts_in_any_order_give_a_tree(counts: list[int]) -> None:
    assert sorted(depths(label_tree(np.array(counts)), len(counts))) == list(range(len(counts)))
