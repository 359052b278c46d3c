"""No document is on both sides: training and validation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from datakit.errors import LoaderError
from datakit.loader import (
    Component,
    Loader,
    Mixture,
    Packing,
    Shuffle,
    SimulatedEpochs,
    held_out_mixture,
    training_source,
    validation_source,
)
from tests.support.loader.sources import counting, random_lengths, real_tokens

LENGTHS = st.lists(st.integers(0, 400), min_size=2, max_size=300)


@given(LENGTHS, st.floats(0.001, 0.99))
@settings(max_examples=40)
def test_sides_share_no_document_and_miss_none(lengths: list[int], share: float) -> None:
    assume(sum(length > 0 for length in lengths) > 1)
    source = counting(lengths)
    component = Component(source, validation_tokens=max(1, int(share * (source.tokens - 1))))
    sides = [training_source(component, "x"), validation_source(component, "x")]
    tokens = [side.read(0, side.tokens) for side in sides]
    assert np.array_equal(np.sort(np.concatenate(tokens)), np.arange(source.tokens))
    whole = source.document_borders(0, source.tokens)
    for side, held in zip(sides, tokens, strict=True):
        for begin, end in pairwise(side.document_borders(0, side.tokens).tolist()):
            document = held[begin:end]
            assert {int(document[0]), int(document[-1]) + 1} <= set(whole.tolist())
            assert np.array_equal(document, np.arange(document[0], document[-1] + 1))


@given(
    seed=st.integers(0, 5),
    kind=st.sampled_from(["block", "full", "none"]),
    packing=st.sampled_from([None, Packing()]),
    length=st.integers(5, 60),
)
@settings(max_examples=8, deadline=None)
def test_no_run_trains_on_held_out_documents(seed: int, kind: str, packing: Packing | None, length: int) -> None:
    source = counting(random_lengths(7, 60, 50))
    component = Component(source, packing, Shuffle(kind, block_tokens=128), validation_tokens=200)
    mixture = Mixture(
        {"x": component}, {"x": 1}, seed=seed, sequence_length=length, batch_size=3, stop="first_exhausted",
        final_batch="pad",
    )  # fmt: skip
    with (
        Loader(mixture) as training,
        Loader(held_out_mixture(mixture, "x", sequence_length=16, batch_size=4)) as validation,
    ):
        seen = np.concatenate([real_tokens(batch) for batch in training])
        held = np.concatenate([real_tokens(batch) for batch in validation])
    assert np.array_equal(np.sort(np.concatenate([seen, held])), np.arange(source.tokens))
    assert np.array_equal(held, np.sort(held))
    assert np.array_equal(held, validation_source(component, "x").read(0, len(held)))


def test_simulated_run_repeats_its_data_as_often() -> None:
    """A run of 1 M tokens that simulates 10 M keeps a tenth of each component and has the long run's epochs."""
    lengths = random_lengths(3, 4000, 500)
    components = {name: Component(counting(lengths), validation_tokens=20_000) for name in "ab"}
    mixture = Mixture(components, {"a": 0.9, "b": 0.1}, sequence_length=100, batch_size=100)
    short = Mixture(
        components, {"a": 0.9, "b": 0.1}, sequence_length=100, batch_size=100, simulate=SimulatedEpochs(1, 10)
    )
    with Loader(mixture) as real, Loader(short) as simulated:
        for name in "ab":
            assert simulated.epochs(100)[name] == pytest.approx(real.epochs(1000)[name], rel=0.03)
        train = real.order.streams[0].source.tokens
        kept = simulated.order.streams[0].source
        assert kept.tokens == pytest.approx(train / 10, rel=0.03)
        held = validation_source(components["a"], "a")
        assert not set(kept.read(0, kept.tokens).tolist()) & set(held.read(0, held.tokens).tolist())


def similar_lengths(count: int) -> list[int]:
    return random_lengths(count, count, 500)


def few_long_documents(count: int) -> list[int]:
    return np.maximum(1, np.random.default_rng(count).lognormal(5, 1.2, count)).astype(int).tolist()


@pytest.mark.parametrize("lengths", [similar_lengths, few_long_documents])
@pytest.mark.parametrize("count", [100, 1000, 10_000])
@pytest.mark.parametrize("share", [(1, 100), (1, 20), (1, 10), (3, 10), (1, 2), (9, 10), (99, 100)], ids=str)
def test_simulated_epochs_keep_the_share_asked_for(
    lengths: Callable[[int], list[int]], count: int, share: tuple[int, int]
) -> None:
    source, simulate = counting(lengths(count)), SimulatedEpochs(*share)
    kept = training_source(Component(source), "x", simulate)
    asked, documents = simulate.kept(source.tokens), count * share[0] / share[1]
    assert abs(kept.tokens - asked) <= (0.02 * asked if documents >= 10 else max(lengths(count)) / 4)
    if documents >= 300:
        borders = kept.document_borders(0, kept.tokens)
        assert len(borders) - 1 == pytest.approx(documents, rel=0.35), "neither the long nor the short ones"
        places = kept.read(0, kept.tokens)[borders[:-1]] * 16 // source.tokens
        assert set(places.tolist()) == set(range(16)), "from all over the source"


@given(LENGTHS, st.integers(1, 99), st.integers(0, 500))
@settings(max_examples=60)
def test_simulated_epochs_keep_whole_documents(lengths: list[int], percent: int, held: int) -> None:
    assume(sum(length > 0 for length in lengths) > 2)
    source = counting(lengths)
    component = Component(source, validation_tokens=min(held, source.tokens - 1))
    try:
        whole = training_source(component, "x")
        kept = training_source(component, "x", SimulatedEpochs(percent, 100))
    except LoaderError as error:
        assert "single document" in str(error)
        return
    asked = max(1, whole.tokens * percent // 100)
    assert abs(kept.tokens - asked) <= max(lengths)
    documents = [whole.read(a, b).tolist() for a, b in pairwise(whole.document_borders(0, whole.tokens).tolist())]
    found = [kept.read(a, b).tolist() for a, b in pairwise(kept.document_borders(0, kept.tokens).tolist())]
    assert found == [document for document in documents if document in found]
