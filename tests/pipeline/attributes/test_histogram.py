"""Bins have round edges, cover all numbers, and each number counts once, in the bin whose edges enclose it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.pipeline.attributes.histogram import Extent, chosen_scale, count_in, edges_of

FLOATS = st.floats(-1e12, 1e12, allow_subnormal=False).filter(lambda value: value == 0 or abs(value) > 1e-12)


def extent_of(values: list[float], whole: bool) -> Extent:
    positive = min((one for one in values if one > 0), default=math.inf)
    return Extent(min(values), sorted(values)[len(values) // 2], max(values), positive, whole)


@given(
    values=st.one_of(st.lists(FLOATS, min_size=1), st.lists(st.integers(-(10**6), 10**9).map(float), min_size=1)),
    scale=st.sampled_from(["auto", "linear", "log"]),
    bins=st.integers(1, 40),
)
def test_every_number_counts_in_the_bin_that_encloses_it(values: list[float], scale: str, bins: int) -> None:
    extent = extent_of(values, all(one == int(one) for one in values))
    edges = edges_of(chosen_scale(scale, extent), extent, bins, float)
    counts = count_in(edges, np.array(values))
    assert 1 <= len(counts) <= bins
    assert counts.sum() == len(values)
    assert edges[0] <= min(values) and edges[-1] >= max(values)
    if len(edges) > 2:
        expected = [sum(low <= one < high for one in values) for low, high in itertools.pairwise(edges)]
        expected[-1] += sum(one == edges[-1] for one in values)
        assert counts.tolist() == expected


def test_scores_get_bins_of_a_twentieth() -> None:
    edges = edges_of("linear", Extent(0.01, 0.5, 1.0, 0.01, False), 20, float)
    assert edges.tolist() == [number / 20 for number in range(21)]


def test_edges_of_float32_equal_the_float32_of_the_same_digits() -> None:
    values = np.array([0.35, 0.4], np.float32).astype(float)
    edges = edges_of("linear", Extent(0.0, 0.4, 1.0, 0.35, False), 20, lambda value: float(np.float32(value)))
    assert count_in(edges, values)[[6, 7, 8]].tolist() == [0, 1, 1]


def test_logarithmic_bins_are_1_2_5_and_zero_has_its_own() -> None:
    extent = Extent(0.0, 3.0, 180.0, 1.0, True)
    assert chosen_scale("auto", extent) == "log"
    edges = edges_of("log", extent, 20, float)
    assert edges.tolist() == [0, 1, 2, 5, 10, 20, 50, 100, 200]
    assert count_in(edges, np.array([0.0, 1, 1, 2, 180])).tolist() == [1, 2, 1, 0, 0, 0, 0, 1]


def test_scores_have_a_linear_scale_even_if_most_are_small() -> None:
    assert chosen_scale("auto", Extent(1e-9, 1e-4, 1.0, 1e-9, False)) == "linear"
    assert chosen_scale("auto", Extent(1.0, 2.0, 41.0, 1.0, True)) == "log"


def test_numbers_below_zero_are_never_on_a_logarithmic_scale() -> None:
    assert chosen_scale("log", Extent(-1.0, 1.0, 1e9, 1.0, False)) == "linear"


@pytest.mark.parametrize("whole", [True, False])
def test_equal_numbers_share_one_bin(whole: bool) -> None:
    edges = edges_of("linear", Extent(7.0, 7.0, 7.0, 7.0, whole), 20, float)
    assert count_in(edges, np.array([7.0, 7.0])).tolist() == [2]
