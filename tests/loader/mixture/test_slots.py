"""Slots number each component's sequences without gaps, across stages that start anywhere."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import LoaderError
from datakit.loader.mixture import apportion
from datakit.loader.mixture import slots as slots_module
from datakit.loader.mixture.slots import SlotOrder
from tests.support.loader.mixture_files import MIXTURE, cache, mixture

__all__ = ["cache", "mixture"]  # fixtures
NAMES = [f"c{i:02d}" for i in range(12)]


@st.composite
def stage_lists(draw: st.DrawFn) -> list[tuple[int, dict[str, float]]]:
    """One to four stages at ascending slots, each over some of the components."""
    gaps = draw(st.lists(st.integers(1, 300), max_size=3))
    firsts = [0, *np.cumsum(gaps).tolist()]
    weights = st.dictionaries(st.sampled_from(NAMES), st.floats(1e-3, 1e3), min_size=1, max_size=6)
    return [(first, draw(weights)) for first in firsts]


@given(stage_lists(), st.integers(1, 64), st.integers(0, 3), st.integers(1, 900))
@settings(max_examples=20)
def test_slots_number_sequences_without_gaps(
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
@settings(max_examples=20)
def test_ranges_of_slots_are_consistent(
    stages: list[tuple[int, dict[str, float]]], block: int, cuts: list[int]
) -> None:
    cuts = sorted(cuts)
    whole = SlotOrder(NAMES, stages, block, 1).rows(cuts[0], cuts[-1])
    order = SlotOrder(NAMES, stages, block, 1)
    parts = [order.rows(a, b) for a, b in reversed(list(pairwise(cuts)))][::-1]
    for i in range(2):
        assert np.array_equal(whole[i], np.concatenate([part[i] for part in parts]))


def test_shares_are_exact_in_every_stage() -> None:
    stages = [(0, {"a": 0.7, "b": 0.2999, "c": 0.0001}), (100_003, {"b": 1.0, "c": 1.0})]
    order = SlotOrder(["a", "b", "c"], stages, 2048, 0)
    for first, weights, slots in ((0, stages[0][1], 40 * 2048), (100_003, stages[1][1], 77 * 2048)):
        served = order.served(first + slots) - order.served(first)
        for name, have in zip("abc", served.tolist(), strict=True):
            assert abs(have - weights.get(name, 0) / sum(weights.values()) * slots) <= 1


def test_later_stage_keeps_earlier_slots() -> None:
    before = SlotOrder(["a", "b"], [(0, {"a": 1, "b": 2})], 16, 0).rows(0, 100)
    after = SlotOrder(["a", "b", "c"], [(0, {"a": 1, "b": 2}), (100, {"c": 1})], 16, 0)
    assert all(np.array_equal(x, y) for x, y in zip(before, after.rows(0, 100), strict=True))
    assert after.rows(100, 110)[0].tolist() == [2] * 10


def test_blocks_have_different_orders() -> None:
    order, other = (SlotOrder(["a", "b"], [(0, {"a": 1, "b": 1})], 64, seed) for seed in (0, 1))
    blocks = [tuple(order.rows(at, at + 64)[0].tolist()) for at in range(0, 640, 64)]
    assert len(set(blocks)) == 10
    assert blocks[0] != tuple(other.rows(0, 64)[0].tolist())


def test_end_too_far_ahead_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    order = SlotOrder(["a", "b"], [(0, {"a": 1.0, "b": 1e-12})], 2048, 0)
    with pytest.raises(LoaderError, match="too far ahead"):
        order.slot_of(1, 10**6)
    near = SlotOrder(["a", "b"], [(0, {"a": 1.0, "b": 1.0})], 8, 0)
    monkeypatch.setattr(slots_module, "MAX_BLOCKS", 10)
    assert near.slot_of(1, 39) is not None
    with pytest.raises(LoaderError, match=r"component 'b': .* sequence 40 comes after slot 80, so .* too far ahead"):
        near.slot_of(1, 40)


PREVIEW = """
import sys
from datakit.cli.app import main
from datakit.loader.mixture import apportion
apportion.ANNOUNCED_BLOCKS = 500
sys.exit(main(["mixture", "preview", sys.argv[1]]))
"""


def test_user_is_told_what_planning_costs(mixture: Path) -> None:
    """In a process of its own, with the logging of a prompt."""
    text = MIXTURE.replace("seed = 5", "seed = 5\nblock = 16").replace("code = 0.1", "code = 0.01")
    mixture.write_text(text.replace("code = 1 }", "code = 0.01 }"))
    words = [sys.executable, "-c", PREVIEW, str(mixture)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"component 'code' has a tiny weight: finding the end of the run takes about \d+ s", done.stderr)
    assert done.stderr.count("takes about") == 1


def test_cost_of_far_slots_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(apportion, "ANNOUNCED_BLOCKS", 1000)
    order = SlotOrder(["a", "b"], [(0, {"a": 1.0, "b": 1e-3})], 8, 0)
    order.rows(900 * 8, 900 * 8 + 1)
    assert not caplog.messages
    for _ in range(2):
        order.rows(5000 * 8, 5000 * 8 + 1)
        assert order.slot_of(1, 20) is not None
    (said,) = caplog.messages
    assert re.fullmatch(
        r"finding sequences far ahead .* takes about 0 s: it needs the shares of 3,840 mixture .*", said
    )
