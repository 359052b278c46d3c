"""Weights become whole sequences: exact to one at every block, for any weights; stages begin at any slot."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import LoaderError
from datakit.loader.mixture.apportion import SCALE, STRIDE, BlockCounts, fixed_point, serve_block
from datakit.loader.mixture.slots import SlotOrder

WEIGHTS = st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=40)
NAMES = [f"c{i:02d}" for i in range(12)]


@given(WEIGHTS)
def test_fixed_point_weights_sum_to_one_exactly_and_none_is_lost(weights: list[float]) -> None:
    parts = fixed_point(weights)
    assert parts.sum() == SCALE
    assert parts.min() >= 1
    total = sum(map(Fraction, weights))
    lifted = sum(1 for weight in weights if Fraction(weight) / total * SCALE < 1)
    for weight, part in zip(weights, parts.tolist(), strict=True):
        assert abs(part - Fraction(weight) / total * SCALE) <= 1 + lifted


@given(WEIGHTS, st.integers(1, 3000), st.integers(1, 120))
def test_after_every_block_each_component_has_its_share_to_one_sequence(
    weights: list[float], block: int, blocks: int
) -> None:
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


def test_the_simple_rule_would_need_negative_counts_and_this_one_does_not() -> None:
    """Largest remainders of the running total: some component is owed less after more blocks."""
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


def test_a_tiny_weight_gets_its_turn() -> None:
    """A rule that rounds each block down would never serve it."""
    counts = BlockCounts([1.0, 1e-5], 2048)
    served = [int(counts.before(number)[1]) for number in range(500)]
    first = next(number for number, have in enumerate(served) if have)
    assert first * 2048 * 1e-5 <= 1 + 2048e-5
    assert served[-1] == pytest.approx(499 * 2048 * 1e-5 / (1 + 1e-5), abs=1)


@given(WEIGHTS, st.integers(1, 100), st.lists(st.integers(0, 4 * STRIDE), min_size=1, max_size=6))
@settings(max_examples=30)
def test_blocks_are_found_in_any_order(weights: list[float], block: int, numbers: list[int]) -> None:
    straight, jumping = BlockCounts(weights, block), BlockCounts(weights, block)
    expected = {number: (straight.before(number), straight.of(number)) for number in range(max(numbers) + 1)}
    for number in numbers:
        assert np.array_equal(jumping.before(number), expected[number][0])
        assert np.array_equal(jumping.of(number), expected[number][1])


@st.composite
def stage_lists(draw: st.DrawFn) -> list[tuple[int, dict[str, float]]]:
    """One to four stages at ascending slots, each over some of the components."""
    gaps = draw(st.lists(st.integers(1, 300), max_size=3))
    firsts = [0, *np.cumsum(gaps).tolist()]
    weights = st.dictionaries(st.sampled_from(NAMES), st.floats(1e-3, 1e3), min_size=1, max_size=6)
    return [(first, draw(weights)) for first in firsts]


@given(stage_lists(), st.integers(1, 64), st.integers(0, 3), st.integers(1, 900))
@settings(max_examples=60)
def test_slots_number_each_component_s_sequences_without_a_gap(
    stages: list[tuple[int, dict[str, float]]], block: int, seed: int, slots: int
) -> None:
    order = SlotOrder(NAMES, stages, block, seed)
    components, sequences = order.rows(0, slots)
    for component in range(len(NAMES)):
        mine = sequences[components == component]
        assert mine.tolist() == list(range(len(mine)))
        assert int(order.served(slots)[component]) == len(mine)
    for slot in range(0, slots, 37):
        assert order.slot_of(int(components[slot]), int(sequences[slot])) == slot
        assert order.earliest(int(components[slot]), int(sequences[slot])) <= slot
    for (first, _), end in zip(stages, [first for first, _ in stages[1:]] + [slots], strict=True):
        members = {NAMES[i] for i in np.unique(components[first : min(end, slots)]).tolist()}
        assert members <= set(dict(stages)[first])


@given(stage_lists(), st.integers(1, 64), st.lists(st.integers(0, 1200), min_size=2, max_size=5))
@settings(max_examples=60)
def test_any_range_of_slots_is_the_same_however_it_is_cut(
    stages: list[tuple[int, dict[str, float]]], block: int, cuts: list[int]
) -> None:
    cuts = sorted(cuts)
    whole = SlotOrder(NAMES, stages, block, 1).rows(cuts[0], cuts[-1])
    order = SlotOrder(NAMES, stages, block, 1)
    parts = [order.rows(a, b) for a, b in reversed(list(pairwise(cuts)))][::-1]
    for i in range(2):
        assert np.array_equal(whole[i], np.concatenate([part[i] for part in parts]))


def test_the_long_run_is_exact_to_one_sequence_a_block_in_every_stage() -> None:
    stages = [(0, {"a": 0.7, "b": 0.2999, "c": 0.0001}), (100_003, {"b": 1.0, "c": 1.0})]
    order = SlotOrder(["a", "b", "c"], stages, 2048, 0)
    for first, weights, slots in ((0, stages[0][1], 40 * 2048), (100_003, stages[1][1], 77 * 2048)):
        served = order.served(first + slots) - order.served(first)
        for name, have in zip("abc", served.tolist(), strict=True):
            assert abs(have - weights.get(name, 0) / sum(weights.values()) * slots) <= 1


def test_a_later_stage_leaves_what_came_before_as_it_was() -> None:
    before = SlotOrder(["a", "b"], [(0, {"a": 1, "b": 2})], 16, 0).rows(0, 100)
    after = SlotOrder(["a", "b", "c"], [(0, {"a": 1, "b": 2}), (100, {"c": 1})], 16, 0)
    assert all(np.array_equal(x, y) for x, y in zip(before, after.rows(0, 100), strict=True))
    assert after.rows(100, 110)[0].tolist() == [2] * 10


def test_blocks_are_shuffled_each_in_its_own_way_and_by_the_seed() -> None:
    order, other = (SlotOrder(["a", "b"], [(0, {"a": 1, "b": 1})], 64, seed) for seed in (0, 1))
    blocks = [tuple(order.rows(at, at + 64)[0].tolist()) for at in range(0, 640, 64)]
    assert len(set(blocks)) == 10
    assert blocks[0] != tuple(other.rows(0, 64)[0].tolist())


def test_an_end_that_is_out_of_sight_is_an_error_not_an_hour() -> None:
    order = SlotOrder(["a", "b"], [(0, {"a": 1.0, "b": 1e-12})], 2048, 0)
    with pytest.raises(LoaderError, match="too far ahead"):
        order.slot_of(1, 10**6)
