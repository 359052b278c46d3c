"""Documents with NaN come first; then the excess decides, or the gradient."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import jax

from datakit.loader.reading.places import DocumentPart
from datakit.trainer.explain.batch_documents import BatchDocument
from datakit.trainer.explain.replay import Compared
from datakit.trainer.explain.scores import GRADIENT, LOSS, Score, gradient_norms, ranking
from datakit.trainer.train import trainer_of
from tests.support.trainer.trainer_runs import TextBytes, small_run


def test_documents_that_are_not_finite_come_first() -> None:
    scores = [Score(9, 5.0, 9.0, 1.0), Score(9, 6.0, 3.0, 2.0), Score(0, None, 0.0, 0.0), Score(9, 1.0, 1.0, math.inf)]
    assert ranking(scores, LOSS) == [3, 0, 1, 2]
    assert ranking(scores, GRADIENT) == [3, 1, 0, 2]
    assert ranking([Score(9, math.nan, math.nan, None), *scores], LOSS)[0] == 0
    assert ranking([Score(9, 2.0, 2.0, None), Score(9, 3.0, 3.0, None)], LOSS) == [1, 0]


def test_a_loss_that_is_not_finite_equals_the_null_in_the_log() -> None:
    assert Compared(1, 2.5, 2.5).equal
    assert not Compared(1, 2.5, math.nextafter(2.5, 3)).equal
    assert Compared(1, None, math.nan).equal
    assert not Compared(1, None, 2.5).equal
    assert not Compared(1, 2.5, math.nan).equal


def test_a_document_of_a_model_with_a_capacity_is_scored_without_it() -> None:
    """One row is not a whole block of `capacity_rows`, and what would be dropped depends on the other rows."""
    rows, model, found = TextBytes().batch(0), small_run().model, list[float]()
    batch: Any = SimpleNamespace(**vars(rows), shape=rows.tokens.shape)
    document: Any = BatchDocument("a", cast(Any, None), 0, (DocumentPart(0, 0, 32, "a", 0, (0, 32)),), excluded=False)
    for capacity in ({}, {"capacity_factor": 0.5, "capacity_rows": 2, "capacity_groups": 2}):
        trainer = trainer_of(small_run(model=replace(model, layers=1, **capacity)), jax.devices()[:1])
        with jax.set_mesh(trainer.mesh):
            state = trainer.fresh(0)
            found += gradient_norms(trainer, state, batch, [document], lambda *_: None)
    assert found[0] == found[1] > 0
