"""The preview adds up to what the run serves."""

from __future__ import annotations

import numpy as np
import pytest

from datakit.errors import LoaderError
from datakit.loader import (
    ArraySource,
    Component,
    Exclusion,
    Mixture,
    Schedule,
    SequenceOrder,
    Stage,
    contributions,
)
from datakit.loader.mixture.preview import Excluded
from tests.support.loader.mixtures import plain_and_packed


def test_contributions_add_up_to_what_is_served() -> None:
    made = plain_and_packed(
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


def test_no_point_of_a_plot_is_close_to_a_change() -> None:
    stages = [Stage({"web": 3.0, "code": 1.0}), Stage({"code": 1.0}, start_step=53)]
    order = SequenceOrder(plain_and_packed(stages=stages, sequence_length=10, batch_size=4))
    assert contributions(order, steps=100, points=11).steps.tolist() == [*range(0, 60, 10), 53, *range(60, 110, 10)]
    apart = contributions(order, steps=100, points=11, apart=True)
    assert apart.steps.tolist() == [0, 10, 20, 30, 40, 53, 60, 70, 80, 90, 100]


def test_excluded_documents_are_counted_by_step_and_component() -> None:
    class Named(ArraySource):
        """Documents whose ids are a word and a number; they are 7 tokens long."""

        def __init__(self, word: str) -> None:
            super().__init__(np.arange(700, dtype=np.uint16), np.full(100, 7))
            self.word = word

        def spans_of(self, identity: str) -> list[tuple[int, int]]:
            word, _, number = identity.partition("-")
            return [(7 * int(number), 7 * int(number) + 7)] if word in (self.word, "both") else []

    exclusions = [Exclusion(["a-5", "both-3"], 4), Exclusion(["a-1"], 90), Exclusion(["a-2"], 4)]
    components = {name: Component(Named(name)) for name in ("a", "b")}
    made = Mixture(components, {"a": 1.0, "b": 1.0}, sequence_length=10, batch_size=2, exclusions=exclusions)
    view = contributions(SequenceOrder(made), steps=10)
    assert list(view.excluded) == [
        Excluded(4, ["a-2", "a-5", "both-3"], {"a": 21, "b": 7}),
        Excluded(90, ["a-1"], {"a": 7}),
    ]
    assert view.excluded[0].text() == "the loss leaves out 3 documents from here on (21 tokens of a, 7 tokens of b)"


def test_endless_mixture_needs_a_number_of_steps() -> None:
    with pytest.raises(LoaderError, match="set `steps` to the number of steps"):
        contributions(SequenceOrder(plain_and_packed()))
    assert (
        contributions(SequenceOrder(plain_and_packed(stop="first_exhausted"))).steps[-1]
        == SequenceOrder(plain_and_packed(stop="first_exhausted")).steps
    )
