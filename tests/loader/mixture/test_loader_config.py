"""Contradictions are named before a token is read; memory decides windows; a changed past is refused; the preview."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from datakit.errors import LoaderError, MixtureChangedError
from datakit.loader import (
    ArraySource,
    BatchSource,
    Component,
    Loader,
    Mixture,
    Packing,
    Schedule,
    SequenceOrder,
    SequenceSource,
    Shuffle,
    SimulatedEpochs,
    Stage,
    contributions,
)
from datakit.loader.mixture.window_sizes import Claim, Grant, grant_windows
from datakit.loader.sources.block_axis import BlockAxis
from tests.support.loader_sources import counting

COMPONENTS = {"web": Component(counting([10] * 100)), "code": Component(counting([10] * 50))}
EVEN = {"web": 1.0, "code": 1.0}
BLOCKS_OF_64 = Shuffle(block_tokens=64)


# --- what cannot be


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stages": {"wed": 1.0}}, "did you mean 'web'"),
        ({"stages": {"web": -1.0}}, "the weight of 'web' is -1.0"),
        ({"stages": {"web": float("nan")}}, "the weight of 'web' is nan"),
        ({"stages": {"web": 0.0}}, "no component has a weight"),
        ({"stages": []}, "at least one stage"),
        ({"stages": [Stage(EVEN, start_step=5)]}, "the first stage must start at 0"),
        ({"stages": [Stage(EVEN), Stage(EVEN, start_slot=9), Stage(EVEN, start_slot=9)]}, "stage 2 starts at slot 9"),
        ({"stages": [Stage(EVEN), Stage(EVEN, start_slot=9, start_step=9)]}, "both start_step and start_slot"),
        ({"sequence_length": 0}, "sequence_length: 0 from step 0"),
        ({"sequence_length": Schedule(((1, 5),))}, "sequence_length: a schedule must start at step 0"),
        ({"batch_size": Schedule(((0, 5), (3, 2), (3, 1)))}, "batch_size: step 3 follows step 3"),
        ({"block": 0}, "block is 0"),
        ({"block": 1 << 16}, "block is 65536"),
        ({"stop": "never"}, "stop is 'never'"),
        ({"final_batch": "keep"}, "final_batch is 'keep'"),
        ({"simulate": SimulatedEpochs(10, 5)}, "run_tokens is 10; it must be from 1 to target_tokens, 5"),
        ({"memory_bytes": 100}, "memory_bytes is 100"),
        ({"components": {"web": Component(ArraySource(np.zeros(0, np.uint16)))}, "stages": {"web": 1}}, "no tokens"),
    ],
)
def test_a_contradiction_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(LoaderError, match=words):
        SequenceOrder(Mixture(**{"components": COMPONENTS, "stages": EVEN, "sequence_length": 10, **change}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shuffle": Shuffle("wild")}, "'web': shuffle is 'wild'"),
        ({"shuffle": Shuffle("full", window_blocks=3)}, "'web': window_blocks is 3 with shuffle 'full'"),
        ({"shuffle": Shuffle(block_tokens=0)}, "'web': block_tokens is 0"),
        ({"max_epochs": 0}, "'web': max_epochs is 0"),
        ({"validation_tokens": -1}, "'web': validation_tokens is -1"),
        ({"packing": Packing("cut")}, "'web': too_long is 'cut'"),
        ({"packing_counts": {10: np.ones(1)}}, "'web' has packing_counts but no packing"),
        ({"shuffle": Shuffle(block_tokens=5)}, "'web': sequences of 10 tokens do not fit in blocks of 5"),
    ],
)
def test_a_component_s_contradiction_names_the_component(change: dict[str, Any], words: str) -> None:
    with pytest.raises(LoaderError, match=words):
        SequenceOrder(Mixture({"web": replace(COMPONENTS["web"], **change)}, {"web": 1}, sequence_length=10))


def test_sources_that_do_not_add_up() -> None:
    with pytest.raises(LoaderError, match="lengths sum to 9, but there are 10"):
        ArraySource(np.arange(10), [4, 5])
    with pytest.raises(LoaderError, match="loss mask has 3 entries"):
        ArraySource(np.arange(10), [10], np.ones(3))


# --- memory


def claim(blocks: int, kind: str = "block", window: int | None = None) -> Claim:
    return Claim(BlockAxis(blocks * 100, 100), 2, Shuffle(kind, 100, window))


def test_small_components_are_held_whole_and_the_others_share_the_rest() -> None:
    grants = grant_windows({"small": claim(3), "large": claim(10_000), "huge": claim(10**6)}, 10_600)
    assert grants["small"] == Grant(3, True, 600)
    assert grants["large"] == Grant(12, True, 4800)  # a share of 5,000 bytes: 12 blocks of 200 bytes, and the next 12
    assert grants["huge"] == Grant(13, True, 5200)


def test_a_named_window_is_kept_and_a_full_shuffle_needs_no_window() -> None:
    grants = grant_windows(
        {"named": claim(1000, window=7), "full": claim(1000, "full"), "order": claim(9, "none")}, 9000
    )
    assert grants["named"] == Grant(7, True, 2800)
    assert grants["full"] == Grant(1000, False, 0)
    assert grants["order"].resident


def test_too_little_memory_is_said_with_what_it_takes() -> None:
    with pytest.raises(LoaderError, match=r"memory_bytes is 700, .*a, b need 800"):
        grant_windows({"a": claim(100), "b": claim(100)}, 700)


# --- the record


def mixture(**change: Any) -> Mixture:
    components = {
        "web": Component(counting([10] * 100), shuffle=BLOCKS_OF_64),
        "code": Component(counting([9] * 50), packing=Packing(), shuffle=BLOCKS_OF_64),
    }
    usual = {"components": components, "stages": EVEN, "sequence_length": 10, "batch_size": 4, "block": 8}
    return Mixture(**{**usual, **change})


def replaced(name: str, component: Component) -> dict[str, Any]:
    return {"components": {**mixture().components, name: component}}


def describe(made: Mixture) -> dict[str, Any]:
    with Loader(made) as loader:
        return json.loads(json.dumps(loader.record()))  # as a checkpoint holds it


def test_the_same_mixture_has_the_same_record() -> None:
    assert describe(mixture()) == describe(mixture())
    with Loader(mixture()) as loader:
        assert loader.verify(describe(mixture()), 10**6) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, "seed: 0 -> 1"),
        ({"block": 16}, "block: 8 -> 16"),
        ({"stages": {"web": 2.0, "code": 1.0}}, r"stages until slot 400: .*'web': 1.0.* -> .*'web': 2.0"),
        ({"sequence_length": 20}, r"sequence_length until step 100: \[\[0, 10\]\] -> \[\[0, 20\]\]"),
        ({"batch_size": Schedule(((0, 4), (99, 8)))}, "batch_size until step 100"),
        ({"stages": [Stage(EVEN), Stage({"web": 1}, start_slot=399)]}, "stages until slot 400"),
        ({"simulate": SimulatedEpochs(1, 2)}, "simulate: None"),
        ({"stop": "first_exhausted"}, "stop: restart -> first_exhausted"),
        (replaced("code", Component(counting([9] * 51))), "component 'code', identity: "),
        (replaced("code", Component(counting([9] * 50))), "packing: split -> None"),
        (
            replaced("web", Component(counting([10] * 100), shuffle=Shuffle(block_tokens=64, window_blocks=2))),
            r"'web', window_blocks: 16 -> 2 \(derived from memory_bytes",
        ),
    ],
)
def test_another_past_is_refused_and_spelled_out(change: dict[str, Any], words: str) -> None:
    with Loader(mixture(**change)) as loader, pytest.raises(MixtureChangedError, match=words) as refused:
        loader.verify(describe(mixture()), 100)
    assert "add a stage that starts at this step" in str(refused.value)


def test_a_deliberate_change_is_a_stage_at_a_named_slot_and_is_reported() -> None:
    """Mid-training: another mix, with a component that is new, another length and batch size, all from step 100 on."""
    components = {**mixture().components, "math": Component(counting([8] * 90), shuffle=BLOCKS_OF_64)}
    changed = mixture(
        components=components,
        stages=[Stage(EVEN), Stage({"math": 1.0, "web": 1.0}, start_step=100)],
        sequence_length=Schedule(((0, 10), (100, 40))),
        batch_size=Schedule(((0, 4), (120, 8))),
    )
    with Loader(mixture()) as before, Loader(changed) as after:
        changes = after.verify(before.record(), 100)
        assert all(np.array_equal(before[step].tokens, after[step].tokens) for step in range(90, 100))
        assert after[100].tokens.shape == (4, 40)
    assert len(changes) == 4
    assert any("'math': 1.0" in change for change in changes)
    assert "component 'math' is new" in changes


def test_a_record_of_another_kind_is_refused() -> None:
    with Loader(mixture()) as loader, pytest.raises(MixtureChangedError, match="format None"):
        loader.verify({}, 0)


def test_packing_says_what_it_did() -> None:
    components = {"x": Component(counting([5, 30, 7]), packing=Packing("truncate")), "y": Component(counting([9]))}
    with Loader(Mixture(components, {"x": 1, "y": 1}, sequence_length=Schedule(((0, 10), (5, 40))))) as loader:
        report = loader.packing_report()
    assert set(report) == {"x"}
    assert (report["x"][10].truncated, report["x"][10].kept, report["x"][10].padding) == (1, 22, 8)
    assert (report["x"][40].truncated, report["x"][40].kept, report["x"][40].padding) == (0, 42, 38)


# --- the preview


def test_contributions_add_up_to_what_is_served() -> None:
    made = mixture(
        stages=[Stage({"web": 3.0, "code": 1.0}), Stage({"code": 1.0}, start_step=50)],
        sequence_length=Schedule(((0, 10), (70, 20))),
        batch_size=Schedule(((0, 4), (30, 8))),
    )
    order = SequenceOrder(made)
    view = contributions(order, steps=100, points=20)
    served = order.slot_order.served(order.axis.first_slot(100))
    at_70 = order.slot_order.served(order.axis.first_slot(70))
    assert view.names == ["code", "web"]
    assert {0, 30, 50, 70, 100} <= set(view.steps.tolist())
    assert view.tokens[-1].tolist() == (at_70 * 10 + (served - at_70) * 20).tolist()
    assert view.share[0].tolist() == pytest.approx([0.25, 0.75], abs=0.06)
    assert view.share[-1].tolist() == [1.0, 0.0]
    assert np.allclose(view.share.sum(axis=1), 1)
    assert (np.diff(view.tokens, axis=0) >= 0).all()
    assert (np.diff(view.epochs, axis=0) >= 0).all()
    assert [step for step, _ in view.changes] == [30, 50, 70]
    assert view.changes[1] == (50, "stage 2: code 1")


def test_contributions_of_an_endless_mixture_need_an_end() -> None:
    with pytest.raises(LoaderError, match="say how many steps"):
        contributions(SequenceOrder(mixture()))
    assert (
        contributions(SequenceOrder(mixture(stop="first_exhausted"))).steps[-1]
        == SequenceOrder(mixture(stop="first_exhausted")).steps
    )


# --- other frameworks


def test_sources_by_index_for_other_frameworks() -> None:
    with Loader(mixture(stop="first_exhausted")) as loader:
        batches, sequences = BatchSource(loader), SequenceSource(loader, steps=5)
        assert (len(batches), len(sequences)) == (loader.steps, 20)
        assert set(batches[3]) == {"tokens", "segments", "positions", "loss_mask"}
        assert np.array_equal(np.stack([sequences[slot]["tokens"] for slot in range(12, 16)]), batches[3]["tokens"])
        assert np.array_equal(sequences[-1]["segments"], sequences[19]["segments"])
        for source in (batches, sequences):
            with pytest.raises(IndexError):
                source[len(source)]
    with Loader(mixture()) as endless, pytest.raises(LoaderError, match="pass `steps`"):
        BatchSource(endless)


def test_grain_takes_it_as_a_source() -> None:
    grain = pytest.importorskip("grain", reason="grain is not installed")
    with Loader(mixture()) as loader:
        dataset = grain.MapDataset.source(SequenceSource(loader, steps=6)).batch(4)
        assert np.array_equal(dataset[2]["tokens"], loader[2].tokens)


def test_torch_takes_it_as_a_dataset() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with Loader(mixture()) as loader:
        found = list(torch.utils.data.DataLoader(BatchSource(loader, steps=3), batch_size=None))
        assert np.array_equal(found[2]["tokens"].numpy(), loader[2].tokens)
