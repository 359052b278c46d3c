"""Evaluation depends on neither batches nor devices, and what cannot be evaluated is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.trainer.ngram import Counts, bits_per_byte, predictions, score
from datakit.errors import UsageError
from datakit.loader import Loader
from datakit.trainer.config import Evaluation
from datakit.trainer.evaluation.evaluate import evaluate
from datakit.trainer.train import train, trainer_of
from tests.support.trainer.trainer_runs import Rows, TextBytes, growing_batches, silent, small_run, tiny_run

SENTENCE = b"It was the best of times, it was the worst of times. " * 40


def test_batches_and_devices_do_not_change_metrics() -> None:
    run = small_run()
    text, lengths = TextBytes(SENTENCE, rows=16), np.ones(256, np.int64)
    rows = text.batch(0)
    parts = [Rows(rows.tokens[part], rows.segments[part], rows.loss_mask[part]) for part in (slice(8), slice(8, 16))]
    first = parts[0]
    padding = Rows(np.zeros_like(first.tokens), np.zeros_like(first.segments), np.zeros_like(first.loss_mask))

    found = []
    for devices, batches in ((1, [rows]), (8, [*parts, padding])):
        trainer = trainer_of(run, jax.devices()[:devices])
        with jax.set_mesh(trainer.mesh):
            state = trainer.fresh(0)
        found.append(evaluate(trainer, state["params"], state["model"], {"it": lambda b=batches: b}, lengths))
    for figures in found[1:]:
        assert figures["eval/it/bpb"] == pytest.approx(found[0]["eval/it/bpb"], rel=1e-6)
    with pytest.raises(UsageError, match="'it' has no token"):
        evaluate(trainer, state["params"], state["model"], {"it": lambda: [padding]}, lengths)


def test_ngram_baselines_equal_their_formulas() -> None:
    text = TextBytes(b"abracadabra " * 50, rows=4, length=32)
    batches, lengths = [text.batch(step) for step in range(3)], np.ones(256, np.int64)
    counts = Counts.of(batches, 256)
    assert counts.tokens == sum(len(predictions(batch)[0]) for batch in batches) == 3 * 4 * 31
    assert counts.unigram().sum() == pytest.approx(1.0)
    for token in (ord("a"), ord("z")):
        everything = counts.bigram_of(np.full(256, token), np.arange(256), 2.0)
        assert everything.sum() == pytest.approx(1.0)
    scored = score(counts, batches, lengths)
    unigram, bigram = scored["unigram"][0], scored["bigram"][0]
    assert bits_per_byte(bigram) < bits_per_byte(unigram) < 8
    assert bigram.tokens == bigram.bytes == counts.tokens


def test_every_length_of_the_training_is_evaluated(tmp_path: Path) -> None:
    run = tiny_run(steps=4, evaluation=Evaluation(every_length=True))
    sets = {length: {"t": lambda length=length: TextBytes(length=length).iterate(0, 1)} for length in (16, 32)}

    def others(step: int) -> dict[int, Any]:
        return {16: sets[16]} if step > 3 else {32: sets[32]}

    with Loader(growing_batches()) as loader:
        outcome = train(run, loader, str(tmp_path), evaluations=sets[32], other_lengths=others, say=silent)
    figures = outcome.figures
    assert figures["eval/t/loss"] != figures["eval/length_16/t/loss"] == figures["eval/length_16/loss"]
    assert "eval/ema/length_16/t/loss" in figures
    assert not any(name.startswith("eval/length_32/") for name in figures)


def test_every_length_without_another_length_is_refused(tmp_path: Path) -> None:
    run = tiny_run(evaluation=Evaluation(every_length=True))
    with pytest.raises(UsageError, match="every_length = True has no effect if all sequences have the same length"):
        train(run, TextBytes(), str(tmp_path), evaluations={"t": lambda: TextBytes().iterate(0, 1)}, say=silent)


def test_waiting_for_batches_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(tiny_run())
    state = trainer.fresh(0)

    def late() -> Iterator[Any]:
        time.sleep(0.2)
        yield from TextBytes().iterate(0, 1)

    found = evaluate(trainer, state["params"], state["model"], {"t": late})
    assert 0.2 <= found["eval/loading_time"] <= found["eval/total_time"]


def test_evaluation_with_a_capacity_is_refused_before_training_unless_devices_hold_whole_blocks(tmp_path: Path) -> None:
    tags = {"a": lambda: TextBytes().iterate(0, 1)}
    run = small_run(
        model=replace(small_run().model, capacity_rows=3, capacity_groups=2),
        evaluation=Evaluation(capacity_factors=(1.0,)),
    )
    lines = list[str]()
    with pytest.raises(UsageError, match="which are not whole blocks of 96 tokens"):
        train(run, TextBytes(), str(tmp_path), evaluations=tags, devices=jax.devices()[:1], say=lines.append)
    assert "fresh start" not in lines
