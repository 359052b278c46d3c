"""Weights become whole sequences, exact to one after every mixture block."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.loader.mixture.apportion import SCALE, STRIDE, BlockCounts, fixed_point, serve_block

WEIGHTS = st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=40)


@given(WEIGHTS)
def test_fixed_point_weights_sum_to_one(weights: list[float]) -> None:
    parts = fixed_point(weights)
    assert parts.sum() == SCALE
    assert parts.min() >= 1
    total = sum(map(Fraction, weights))
    lifted = sum(1 for weight in weights if Fraction(weight) / total * SCALE < 1)
    for weight, part in zip(weights, parts.tolist(), strict=True):
        assert abs(part - Fraction(weight) / total * SCALE) <= 1 + lifted


@given(WEIGHTS, st.integers(1, 3000), st.integers(1, 120))
def test_every_block_keeps_exact_shares(weights: list[float], block: int, blocks: int) -> None:
    parts = fixed_point(weights)
    served, debt = np.zeros(len(parts), np.int64), np.zeros(len(parts), np.int64)
    for number in range(1, blocks + 1):
        counts, debt = serve_block(debt, parts * block, block)
        assert counts.min() >= 0
        assert counts.sum() == block
        served += counts
        for part, have in zip(parts.tolist(), served.tolist(), strict=True):
            owed = part * block * number
            assert owed // SCALE <= have <= -(-owed // SCALE)


def test_counts_are_never_negative() -> None:
    """Largest remainders of the running total would sometimes owe a component less after more blocks."""
    weights = np.random.default_rng(0).pareto(0.6, 40) + 1e-6
    shares = weights / weights.sum()

    def largest_remainder(slots: int) -> np.ndarray:
        owed = shares * slots
        counts = np.floor(owed).astype(np.int64)
        counts[np.argsort(counts - owed, kind="stable")[: slots - counts.sum()]] += 1
        return counts

    block, blocks = 16, 1000
    totals = [largest_remainder(block * number) for number in range(blocks + 1)]
    assert sum((after < before).any() for before, after in pairwise(totals)) > 0
    ours = BlockCounts(weights.tolist(), block)
    assert all(ours.of(number).min() >= 0 for number in range(blocks))


def test_tiny_weights_are_served() -> None:
    """Rounding each block down would never serve one."""
    counts = BlockCounts([1.0, 1e-5], 2048)
    served = [int(counts.before(number)[1]) for number in range(500)]
    first = next(number for number, have in enumerate(served) if have)
    assert first * 2048 * 1e-5 <= 1 + 2048e-5
    assert served[-1] == pytest.approx(499 * 2048 * 1e-5 / (1 + 1e-5), abs=1)


@given(WEIGHTS, st.integers(1, 100), st.lists(st.integers(0, 4 * STRIDE), min_size=1, max_size=6))
@settings(max_examples=10)
def test_blocks_can_be_visited_in_any_order(weights: list[float], block: int, numbers: list[int]) -> None:
    straight, jumping = BlockCounts(weights, block), BlockCounts(weights, block)
    expected = {number: (straight.before(number), straight.of(number)) for number in range(max(numbers) + 1)}
    for number in numbers:
        assert np.array_equal(jumping.before(number), expected[number][0])
        assert np.array_equal(jumping.of(number), expected[number][1])
