"""Bits per byte are exact, tags have parents, and no two metrics have the same name."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from datakit.errors import UsageError
from datakit.trainer.evaluation.totals import Totals, check_tags, count, summary
from datakit.trainer.train import train
from tests.support.trainer.trainer_runs import TextBytes, small_run


def test_bits_per_byte_are_total_bits_over_total_bytes() -> None:
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 9, (4, 6))
    losses = generator.random((4, 6)).astype(np.float32)
    weights_ = (generator.random((4, 6)) < 0.7).astype(np.float32)
    lengths = np.arange(9) % 4
    whole = count(losses, weights_, tokens, lengths)
    nats = bytes_ = predicted = 0.0
    for row in range(4):
        for position in range(5):
            if weights_[row, position]:
                nats += float(losses[row, position])
                bytes_ += float(lengths[tokens[row, position + 1]])
                predicted += 1
    assert (whole.tokens, whole.bytes) == (predicted, bytes_)
    assert whole.bits_per_byte == pytest.approx(nats / math.log(2) / bytes_, rel=1e-12)
    halves = sum((count(losses[i : i + 2], weights_[i : i + 2], tokens[i : i + 2], lengths) for i in (0, 2)), Totals())
    assert halves.nats == pytest.approx(whole.nats, rel=1e-12)
    assert (halves.tokens, halves.bytes) == (whole.tokens, whole.bytes)


def test_tags_have_parents_and_macro_means() -> None:
    totals = {
        "code/python": Totals(100.0, 50, 80),
        "code/c": Totals(30.0, 10, 20),
        "web": Totals(400.0, 200, 900),
    }
    figures = summary(totals)
    assert figures["eval/code/python/loss"] == 2.0
    assert figures["eval/code/micro_loss"] == pytest.approx(130 / 60)
    assert figures["eval/code/macro_loss"] == 2.5
    assert figures["eval/code/bpb"] == pytest.approx(130 / math.log(2) / 100)
    assert figures["eval/code/macro_bpb"] == pytest.approx((100 / 80 + 30 / 20) / 2 / math.log(2))
    assert figures["eval/loss"] == pytest.approx(530 / 260)
    assert figures["eval/macro_loss"] == pytest.approx(7 / 3)
    assert figures["eval/macro_bpb"] == pytest.approx((100 / 80 + 30 / 20 + 400 / 900) / 3 / math.log(2))
    assert not any("bpb" in name for name in summary({"web": Totals(4.0, 2, 0)}))


TEXT = b"It was the best of times, it was the worst of times. " * 40


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (
            ["code", "code/python", "web"],
            "'code' is the parent of 'code/python'.*rename the parent, e.g. to 'code/all'",
        ),
        (["a/b", "a/b/c/d"], "'a/b' is the parent of 'a/b/c/d'"),
        (["ema", "web"], "'ema': eval/ema/ holds the metrics of averaged weights; rename this evaluation"),
        (["ema/late"], "'ema/late': eval/ema/"),
        (["length_16"], "'length_16': eval/length_16/ holds the metrics of sequences of another length; rename"),
    ],
)
def test_tags_with_clashing_metric_names_are_refused(tags: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        check_tags(tags)
    evaluations = {tag: lambda: TextBytes(TEXT, seed=5).iterate(0, 1) for tag in tags}
    with pytest.raises(UsageError, match=message):
        train(small_run(), TextBytes(TEXT), str(tmp_path), evaluations=evaluations)
    assert not list(tmp_path.glob("*/*/metrics.jsonl"))


def test_unrelated_tags_are_accepted() -> None:
    check_tags(["code/python", "code/c", "codes", "web/ema"])
