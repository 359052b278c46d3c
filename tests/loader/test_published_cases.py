"""Restates cases from other loaders' documentation and tests where this loader means to do the same.

Where it differs on purpose, the test says how; docs/loader.md lists the differences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from datakit.errors import LoaderError
from datakit.loader import ArraySource, Component, Loader, Mixture, Packing, Schedule, Shuffle, SimulatedEpochs, Stage
from datakit.loader.mixture.packing import best_fit, pack_block
from datakit.loader.mixture.schedule import SlotAxis
from datakit.loader.sources.token_source import BlockAxis
from tests.support.loader.sources import documents_of

IN_ORDER = Shuffle("none")


def groups(lengths: Sequence[int], capacity: int, most: int = 0) -> set[frozenset[int]]:
    """Which items share a sequence."""
    chosen = best_fit(np.array(lengths), capacity, most)
    return {frozenset(np.flatnonzero(chosen == sequence).tolist()) for sequence in set(chosen.tolist())}


def packed_rows(documents: Sequence[Sequence[int]], length: int, policy: str = "split") -> list[list[int]]:
    """The sequences of a packed component, in the order of its block, without padding."""
    source = documents_of(documents)
    pieces = pack_block(source, BlockAxis(source.tokens, 1 << 20), 0, length, Packing(policy)).pieces
    rows = []
    for sequence in range(pieces.sequences):
        part = pieces.take(np.array([sequence]))
        rows.append(np.concatenate([source.read(a, a + n) for a, n in zip(part.starts, part.lengths, strict=True)]))
    return [row.tolist() for row in rows]


def elements(sizes: dict[str, int], weights: Mapping[str, float], **settings: Any) -> Loader:
    """A mixture of components of one-token sequences: element i of a component is token i."""
    components = {name: Component(ArraySource(np.arange(size, dtype=np.uint32))) for name, size in sizes.items()}
    usual = {"components": components, "stages": weights, "sequence_length": 1, "batch_size": 1}
    return Loader(Mixture(**{**usual, **settings}))


def rows_of(component: Component, length: int, rows: int) -> Loader:
    return Loader(
        Mixture(
            {"x": component},
            {"x": 1},
            sequence_length=length,
            batch_size=rows,
            stop="first_exhausted",
            final_batch="pad",
        )
    )


# --- grain: packing


@pytest.mark.parametrize(
    ("lengths", "capacity", "expected"),
    [
        ([4, 8, 2], 10, {frozenset({0}), frozenset({1, 2})}),
        ([10, 15, 4], 20, {frozenset({0}), frozenset({1, 2})}),
        ([50, 70, 25, 40], 100, {frozenset({0, 3}), frozenset({1, 2})}),
        ([10, 15, 4, 10], 20, {frozenset({0, 3}), frozenset({1, 2})}),
        ([4, 2, 4, 1, 1], 4, {frozenset({0}), frozenset({2}), frozenset({1, 3, 4})}),
        ([4, 2, 4, 1], 4, {frozenset({0}), frozenset({2}), frozenset({1, 3})}),
        ([3, 2, 1], 3, {frozenset({0}), frozenset({1, 2})}),
    ],
)
def test_grain_best_fit_groups_the_same_documents(
    lengths: list[int], capacity: int, expected: set[frozenset[int]]
) -> None:
    """Its best-fit and single-bin cases for one feature. Sequences come in another order: longest document first."""
    assert groups(lengths, capacity) == expected


def test_grain_segment_numbers_and_padding() -> None:
    component = Component(documents_of([[5, 6], [7]]), packing=Packing(), shuffle=IN_ORDER)
    with rows_of(component, 4, 1) as loader:
        batch = loader[0]
    assert batch.tokens.tolist() == [[5, 6, 7, 0]]
    assert batch.segments.tolist() == [[1, 1, 2, 0]]
    assert batch.positions.tolist() == [[0, 1, 0, 0]]


def test_grain_concat_then_split() -> None:
    """Documents 1, 22, 333, ... of up to seven tokens end to end, cut every six; the rest is padded."""
    documents = [[n] * n for n in (1, 2, 3, 4, 5, 6, 7, 1, 2)]
    with rows_of(Component(documents_of(documents), shuffle=IN_ORDER), 6, 6) as loader:
        batch = loader[0]
        assert len(loader) == 1
    assert batch.tokens.tolist() == [
        [1, 2, 2, 3, 3, 3], [4, 4, 4, 4, 5, 5], [5, 5, 5, 6, 6, 6],
        [6, 6, 6, 7, 7, 7], [7, 7, 7, 7, 1, 2], [2, 0, 0, 0, 0, 0],
    ]  # fmt: skip
    assert batch.segments.tolist() == [
        [1, 2, 2, 3, 3, 3], [1, 1, 1, 1, 2, 2], [1, 1, 1, 2, 2, 2],
        [1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 2, 3], [1, 0, 0, 0, 0, 0],
    ]  # fmt: skip
    assert batch.positions.tolist() == [
        [0, 0, 1, 0, 1, 2], [0, 1, 2, 3, 0, 1], [0, 1, 2, 0, 1, 2],
        [0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 0, 0], [0, 0, 0, 0, 0, 0],
    ]  # fmt: skip


# --- grain: mixing


@pytest.mark.parametrize("weights", [{"even": 2, "odd": 2}, {"even": 0.5, "odd": 0.5}])
def test_grain_equal_proportions(weights: dict[str, float]) -> None:
    """In pairs; here the order inside each pair is random."""
    with elements({"even": 5, "odd": 5}, weights, block=2) as loader:
        drawn = [int(loader[step].components[0]) for step in range(10)]
    assert [sorted(drawn[i : i + 2]) for i in range(0, 10, 2)] == [[0, 1]] * 5


@pytest.mark.parametrize(("weights", "block"), [({"even": 1, "odd": 2}, 3), ({"even": 3, "odd": 1}, 4)])
def test_grain_proportions_hold_in_every_period(weights: dict[str, int], block: int) -> None:
    with elements({"even": 5, "odd": 5}, weights, block=block) as loader:
        drawn = np.array([loader[step].components[0] for step in range(10 * block)]).reshape(10, block)
    assert (np.count_nonzero(drawn == 0, axis=1) == weights["even"]).all()


def test_grain_mix_of_endless_mixes() -> None:
    """Four zeros to one one, mixed one to one with ones: 400 and 600 of a thousand."""
    with elements({"zeros": 1, "ones": 1}, {"zeros": 0.4, "ones": 0.6}, block=100, batch_size=1000) as loader:
        counts = Counter(loader.order.names[component] for component in loader[0].components.tolist())
    assert counts == {"zeros": 400, "ones": 600}


@pytest.mark.parametrize(("weights", "block", "least", "most"), [([1, 1, 1], 3, 15, 17), ([1, 2, 1], 4, 20, 23)])
def test_grain_finite_mix_ends_with_its_first_part(weights: list[int], block: int, least: int, most: int) -> None:
    """With 10, 20 and 5 elements, grain serves 15 by index and 17 by iterator; ours serves a number in between."""
    sizes = {"a": 10, "b": 20, "c": 5}
    with elements(sizes, dict(zip(sizes, weights, strict=True)), block=block, stop="first_exhausted") as loader:
        assert least <= len(loader) <= most
        seen = Counter((batch.components[0], batch.tokens[0, 0]) for batch in loader)
    assert set(seen.values()) == {1}


# --- Levanter: mixture

SIZES, WEIGHTS = {"ds1": 5, "ds2": 5, "ds3": 5}, {"ds1": 0.5, "ds2": 0.3, "ds3": 0.2}


def test_levanter_blocks_keep_weights_in_different_orders() -> None:
    with elements(SIZES, WEIGHTS, block=10, batch_size=10) as loader:
        blocks = [loader[step].components.tolist() for step in range(20)]
        assert loader[0].components.tolist() == blocks[0]
    assert all(Counter(block) == {0: 5, 1: 3, 2: 2} for block in blocks)
    assert len({tuple(block) for block in blocks}) > 15


def test_levanter_restart_samples_everything() -> None:
    with elements(SIZES, WEIGHTS, block=10, batch_size=10) as loader:
        seen = {
            (int(c), int(t))
            for step in range(100)
            for c, t in zip(loader[step].components, loader[step].tokens[:, 0], strict=True)
        }
        with pytest.raises(TypeError, match="number of batches is unlimited"):
            len(loader)
    assert seen == {(component, token) for component in range(3) for token in range(5)}


def test_levanter_zero_weights_are_never_sampled() -> None:
    with elements(SIZES, {"ds1": 0, "ds2": 2.0, "ds3": 2.0}, block=10, batch_size=100) as loader:
        assert Counter(loader.order.names[i] for i in loader[0].components.tolist()) == {"ds2": 50, "ds3": 50}


def test_levanter_stop_strategies() -> None:
    """All weight on one of 10: ten sequences. Balanced with one of 20: the first end comes before the last."""
    sizes = {"1": 10, "2": 20}
    with elements(sizes, {"1": 1.0, "2": 0.0}, stop="first_exhausted") as alone:
        assert len(alone) == 10
    lengths = {}
    for stop in ("first_exhausted", "all_exhausted"):
        with elements(sizes, {"1": 0.5, "2": 0.5}, stop=stop, block=2) as loader:
            lengths[stop] = len(loader)
    assert lengths["first_exhausted"] in (20, 21)
    assert lengths["all_exhausted"] in (39, 40)


def test_levanter_stage_steps_follow_the_batch_size() -> None:
    """Step 10 is slot 150 where batches of 10 become batches of 20 at step 5, and slot 100 where they do at step 10."""
    stage = Stage({"ds1": 0.2, "ds2": 0.8}, start_step=10)
    assert stage.first_slot(SlotAxis(Schedule(((0, 10), (5, 20))))) == 150
    assert stage.first_slot(SlotAxis(Schedule(((0, 10), (10, 20))))) == 100


@pytest.mark.parametrize("kept", [1, 2])
def test_levanter_simulated_epochs_use_a_part(kept: int) -> None:
    """There, the first elements; here, a spread-out choice of whole documents."""
    components = {
        name: Component(ArraySource(np.arange(5, dtype=np.uint32) + 10 * i, [1] * 5)) for i, name in enumerate(SIZES)
    }
    mixture = Mixture(
        components, dict.fromkeys(SIZES, 1 / 3), sequence_length=1, batch_size=60, simulate=SimulatedEpochs(kept, 5)
    )
    with Loader(mixture) as loader:
        seen = Counter(loader[0].tokens[:, 0].tolist())
    assert Counter(token // 10 for token in seen) == {0: kept, 1: kept, 2: kept}


# --- Levanter: packing


def test_levanter_documents_fill_two_sequences() -> None:
    assert groups([100, 200, 150, 150], 300) == {frozenset({0, 1}), frozenset({2, 3})}
    assert groups([100, 200, 150, 150], 300, most=1) == {frozenset({i}) for i in range(4)}
    assert groups([100, 200, 150, 150], 1000, most=1) == {frozenset({i}) for i in range(4)}


def test_levanter_padding_and_empty_documents_have_no_loss() -> None:
    """Its segments are numbered from 0 and padded with -1; here from 1, and padded with 0."""
    component = Component(documents_of([[], [1, 2], [], [3, 4, 5]]), packing=Packing(), shuffle=IN_ORDER)
    with rows_of(component, 10, 1) as loader:
        batch = loader[0]
    assert batch.tokens.tolist() == [[3, 4, 5, 1, 2, 0, 0, 0, 0, 0]]
    assert batch.segments.tolist() == [[1, 1, 1, 2, 2, 0, 0, 0, 0, 0]]
    assert batch.loss_mask.tolist() == [[True] * 5 + [False] * 5]


def test_levanter_prompts_have_no_loss() -> None:
    """Its mask is on the token that predicts, ours on the token that is predicted."""
    source = ArraySource(np.array([1, 2, 3, 4, 5], np.uint16), [3, 2], loss_mask=np.array([0, 0, 1, 0, 1], bool))
    with rows_of(Component(source, packing=Packing(max_documents=2), shuffle=IN_ORDER), 10, 1) as loader:
        batch = loader[0]
    assert batch.tokens[0, :5].tolist() == [1, 2, 3, 4, 5]
    assert np.flatnonzero(batch.loss_mask[0]).tolist() == [2, 4]


# --- OLMo-core: packing

FIRST = [[1, 2, 3, 4, 5, 6, 7, 0], [1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0], [1, 2, 3, 0], [1, 2, 0]]
SECOND = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0], [1, 2, 0]]


@pytest.mark.parametrize(
    ("policy", "last"), [("truncate", [1, 2, 0]), ("split", [9, 10, 0, 1, 2, 0])]
)  # it calls splitting "fragment"
def test_olmo_core_packs_each_source_by_best_fit_decreasing(policy: str, last: list[int]) -> None:
    assert packed_rows(FIRST, 8, policy) == [FIRST[0], FIRST[1], FIRST[2], [1, 2, 3, 0, 1, 2, 0]]
    assert packed_rows(SECOND, 8, policy) == [[1, 2, 3, 4, 5, 6, 7, 8], last]


def test_olmo_core_packs_sources_in_groups() -> None:
    """Two files in one group are here one source."""
    group = [
        [1, 2, 3, 0], [11, 12, 13, 14, 15, 0], [21, 22, 23, 24, 25, 0], [31, 32, 33, 0], [41, 42, 0], [51, 52, 0],
        [61, 62, 63, 64, 65, 66, 67, 0],
    ]  # fmt: skip
    assert packed_rows(group, 8, "truncate") == [
        [61, 62, 63, 64, 65, 66, 67, 0], [11, 12, 13, 14, 15, 0], [21, 22, 23, 24, 25, 0], [1, 2, 3, 0, 31, 32, 33, 0],
        [41, 42, 0, 51, 52, 0],
    ]  # fmt: skip
    other = [[71, 72, 73, 74, 75, 76, 77, 78, 79, 0], [81, 82, 0], [91, 92, 93, 94, 0]]
    assert packed_rows(other, 8, "truncate") == [[71, 72, 73, 74, 75, 76, 77, 78], [91, 92, 93, 94, 0, 81, 82, 0]]


# --- OLMo-core: mixing


def test_olmo_core_smaller_half_limits_the_mix() -> None:
    """8 and 24 sequences of 8 tokens: 16, and half of each."""
    components = {"a": Component(ArraySource(np.arange(64))), "b": Component(ArraySource(np.arange(192)))}
    mixture = Mixture(
        components, {"a": 0.5, "b": 0.5}, sequence_length=8, batch_size=1, block=2, stop="first_exhausted"
    )
    with Loader(mixture) as loader:
        assert len(loader) in (16, 17)
        assert Counter(batch.components[0] for batch in loader)[0] == 8


def test_olmo_core_impossible_target_needs_repetition() -> None:
    components = {name: Component(ArraySource(np.arange(64)), max_epochs=1) for name in "ab"}
    settings: dict[str, Any] = {"sequence_length": 8, "batch_size": 1, "block": 2}
    with Loader(Mixture(components, {"a": 0.5, "b": 0.5}, **settings)) as loader:
        loader.order.require(16)
        with pytest.raises(LoaderError, match="has completed 1 epoch"):
            loader.order.require(19)
    components = {name: Component(ArraySource(np.arange(64)), max_epochs=3) for name in "ab"}
    with Loader(Mixture(components, {"a": 0.5, "b": 0.5}, **settings)) as loader:
        loader.order.require(48)
