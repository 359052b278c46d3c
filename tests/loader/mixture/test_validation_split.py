"""No document is on both sides: training and validation."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

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
            assert simulated.epochs(100)[name] == pytest.approx(real.epochs(1000)[name], rel=0.15)
        train = real.order.streams[0].source.tokens
        kept = simulated.order.streams[0].source
        assert kept.tokens == pytest.approx(train / 10, rel=0.15)
        held = validation_source(components["a"], "a")
        assert not set(kept.read(0, kept.tokens).tolist()) & set(held.read(0, held.tokens).tolist())
