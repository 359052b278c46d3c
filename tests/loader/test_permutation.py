"""Permutations are bijections, frozen, and as random as a shuffled deck at any size."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from datakit.loader.permutation import TABLE_SIZE, InOrder, Permutation, derive_key

SURELY_NOT_CHANCE = 1e-6  # keys are fixed; a correct permutation passes for nearly every choice of them
KEYS = [5000, pytest.param(40_000, marks=pytest.mark.soak)]
BEYOND_TABLES = [TABLE_SIZE + 1, 6000, 8192, 8193, 40_000]  # odd and even numbers of bits, powers of two and others


def chi_square_p(observed: np.ndarray, expected: float, freedom: int) -> float:
    return float(chi2.sf(((observed - expected) ** 2 / expected).sum(), freedom))


@given(st.integers(1, 20_000), st.integers(0, 2**64 - 1))
def test_permutation_is_a_bijection(size: int, key: int) -> None:
    order = Permutation(size, key)
    everything = order(np.arange(size))
    assert np.array_equal(np.sort(everything), np.arange(size))
    assert np.array_equal(order.inverse(everything), np.arange(size))


@given(st.integers(1, 2**62 - 1), st.integers(0, 2**64 - 1), st.data())
def test_huge_permutations_need_no_table(size: int, key: int, data: st.DataObject) -> None:
    order = Permutation(size, key)
    places = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    indices = order(places)
    assert ((indices >= 0) & (indices < size)).all()
    assert np.array_equal(order.inverse(indices), places)


def test_orders_never_change_between_versions() -> None:
    """A run resumed on another machine or with a later version must find the same order."""
    assert derive_key(7, "web", "epoch", 3) == 16242628603991004127
    assert Permutation(10, 1)(np.arange(10)).tolist() == [8, 4, 3, 7, 0, 1, 5, 9, 6, 2]
    assert Permutation(1_000_000, 1)(np.arange(5)).tolist() == [429482, 442729, 666044, 553160, 955517]


def test_in_order_is_the_identity() -> None:
    assert InOrder(5)(np.arange(5)).tolist() == InOrder(5).inverse(np.arange(5)).tolist() == [0, 1, 2, 3, 4]


def test_invalid_sizes_are_refused() -> None:
    for size in (0, 2**62):
        with pytest.raises(ValueError, match="elements"):
            Permutation(size, 0)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_orders_of_few_elements_are_uniform(size: int, keys: int) -> None:
    seen = Counter(tuple(Permutation(size, derive_key("all", key))(np.arange(size)).tolist()) for key in range(keys))
    counts = np.array([seen[order] for order in permutations(range(size))])
    assert chi_square_p(counts, keys / len(counts), len(counts) - 1) > SURELY_NOT_CHANCE


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("size", [7, 16, 33, 100])
def test_places_are_uniform(size: int, keys: int) -> None:
    counts = np.zeros((size, size))
    for key in range(keys):
        counts[np.arange(size), Permutation(size, derive_key("place", key))(np.arange(size))] += 1
    assert chi_square_p(counts, keys / size, (size - 1) ** 2) > SURELY_NOT_CHANCE


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("size", [7, 16, 33])
def test_neighbours_are_uniform(size: int, keys: int) -> None:
    counts = np.zeros((size, size))
    for key in range(keys):
        order = Permutation(size, derive_key("pair", key))(np.arange(size))
        counts[order[:-1], order[1:]] += 1
    pairs = counts[~np.eye(size, dtype=bool)]
    assert chi_square_p(pairs, keys * (size - 1) / len(pairs), len(pairs) - 1) > SURELY_NOT_CHANCE


@pytest.mark.parametrize("size", BEYOND_TABLES)
def test_large_permutations_spread_places_evenly(size: int) -> None:
    """64 x 64 boxes of (place, element), over many keys."""
    keys, boxes = 20, 64
    counts = np.zeros((boxes, boxes))
    places = np.arange(size)
    for key in range(keys):
        np.add.at(
            counts, (places * boxes // size, Permutation(size, derive_key("big", key))(places) * boxes // size), 1
        )
    sides = np.bincount(places * boxes // size, minlength=boxes)
    expected = np.outer(sides, sides) / size * keys
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert chi2.sf(statistic, (boxes - 1) ** 2) > SURELY_NOT_CHANCE


@pytest.mark.parametrize("size", BEYOND_TABLES)
def test_large_permutations_separate_neighbours(size: int) -> None:
    """The distances between elements 1, 2 and 64 places apart, around the circle, are uniform."""
    keys, boxes = 20, 128
    for step in (1, 2, 64):
        counts = np.zeros(boxes)
        for key in range(keys):
            order = Permutation(size, derive_key("near", step, key))(np.arange(size))
            counts += np.bincount(((order[step:] - order[:-step]) % size) * boxes // size, minlength=boxes)
        distances = np.bincount(np.arange(1, size) * boxes // size, minlength=boxes)  # 0 is impossible
        expected = distances / (size - 1) * keys * (size - step)
        assert chi2.sf(((counts - expected) ** 2 / expected).sum(), boxes - 1) > SURELY_NOT_CHANCE


@pytest.mark.parametrize("size", BEYOND_TABLES)
def test_similar_keys_give_unrelated_orders(size: int) -> None:
    """Two random permutations agree at one place on average."""
    agreeing = [
        int((Permutation(size, 12345)(np.arange(size)) == Permutation(size, 12345 ^ 1 << bit)(np.arange(size))).sum())
        for bit in range(64)
    ]
    assert 30 < sum(agreeing) < 110
    assert max(agreeing) < 10
