"""Minima are those of all shingles, and signatures from a tiny range of values are marked as saturated."""

from __future__ import annotations

import numpy as np
import pytest

from datakit.dedup.minhash import kernels
from datakit.dedup.minhash.kernels import SATURATED, STRIDE, TINY, is_saturated
from datakit.dedup.minhash.signatures import permutations


def test_minima_from_a_tiny_range_are_saturated() -> None:
    minima = np.full(112, TINY - 1, np.uint32)
    minima[: 112 // 8] = 2**31
    assert is_saturated(minima)
    minima[112 // 8] = TINY
    assert not is_saturated(minima)
    assert SATURATED == 2


@pytest.mark.parametrize("count", [0, 1, STRIDE - 1, STRIDE, STRIDE + 1, 3 * STRIDE + 5])
def test_minima_are_those_of_all_shingles(count: int) -> None:
    dice, mixed = np.random.default_rng(count), permutations(42, 20)
    shingles = dice.integers(0, 2**64, count + 4, np.uint64)  # those after `count` must not matter
    minima = dice.integers(0, 2**32, 20, np.uint32)
    values = (shingles[:count, None] >> np.uint64(32)).astype(np.uint32) * mixed.multipliers + mixed.addends
    expected = np.minimum(minima, values.min(axis=0, initial=2**32 - 1))
    kernels._minimize(shingles, count, np.empty(count + STRIDE, np.uint32), mixed, minima)  # pyright: ignore[reportPrivateUsage]
    assert np.array_equal(minima, expected)
