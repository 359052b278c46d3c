"""What a run is given is checked before it counts: ids that the model knows, tags with figures of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datakit.errors import UsageError
from datakit.loader import ArraySource, Component, Loader, Mixture
from datakit.trainer.device_feed import place
from datakit.trainer.evaluate import check_tags
from datakit.trainer.models import weights
from datakit.trainer.train import train
from tests.support.trainer_runs import Rows, TextBytes, small_run

TEXT = b"It was the best of times, it was the worst of times. " * 40


def test_ids_that_the_model_does_not_know_end_the_run(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 1000, 6400).astype(np.uint16)
    mixture = Mixture({"a": Component(ArraySource(tokens))}, {"a": 1.0}, sequence_length=32, batch_size=8)
    with Loader(mixture) as loader, pytest.raises(UsageError, match=r"holds the id 9\d\d, but the model's vocabulary"):
        train(small_run(), loader, str(tmp_path))


@pytest.mark.parametrize("wrong", [-1, 256])
def test_one_wrong_id_is_enough(wrong: int) -> None:
    rows = TextBytes(TEXT).batch(0)
    tokens = rows.tokens.copy()
    place(Rows(tokens, rows.segments, rows.loss_mask), weights.make_mesh(), 256)
    tokens[3, 7] = wrong
    with pytest.raises(UsageError, match=f"a batch holds the id {wrong}, but the model's vocabulary has 256 ids"):
        place(Rows(tokens, rows.segments, rows.loss_mask), weights.make_mesh(), 256)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (["code", "code/python", "web"], "'code' is the parent of 'code/python'.*rename it, e.g. to 'code/all'"),
        (["a/b", "a/b/c/d"], "'a/b' is the parent of 'a/b/c/d'"),
        (["ema", "web"], "'ema': eval/ema/ is where the figures of averaged weights stand; rename it"),
        (["ema/late"], "'ema/late': eval/ema/"),
    ],
)
def test_tags_that_would_take_other_figures_names_are_refused(tags: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        check_tags(tags)
    evaluations = {tag: lambda: TextBytes(TEXT, seed=5).iterate(0, 1) for tag in tags}
    with pytest.raises(UsageError, match=message):
        train(small_run(), TextBytes(TEXT), str(tmp_path), evaluations=evaluations)
    assert not list(tmp_path.glob("*/*/metrics.jsonl"))


def test_tags_beside_each_other_are_fine() -> None:
    check_tags(["code/python", "code/c", "codes", "web/ema"])
