"""A loss far above the recent ones is a spike; the usual noise and fall of a loss is none."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datakit.trainer.config import Log
from datakit.trainer.metrics.json_lines import STEP, read_metrics
from datakit.trainer.metrics.spikes import FEWEST, LOSS, WINDOW, Spikes
from datakit.trainer.train import train
from tests.support.trainer.trainer_runs import Rows, TextBytes, small_run


def alarmed(losses: list[float], every: int = 1, known: int = 0) -> list[int]:
    """The steps with an alarm, if the losses of the first `known` steps come from the rows of an earlier start."""
    rows = [{STEP: step, LOSS: loss} for step, loss in enumerate(losses[:known], 1) if step % every == 0]
    spikes = Spikes(8.0, every, rows[-WINDOW:])
    later = range(known + 1, len(losses) + 1)
    return [step for step in later if spikes.check(step, losses[step - 1]) is not None]


@given(seed=st.integers(0, 10_000), noise=st.floats(0.0, 0.3), at=st.integers(FEWEST + 1, 300))
def test_only_the_spike_of_a_falling_noisy_loss_raises_an_alarm(seed: int, noise: float, at: int) -> None:
    dice = random.Random(seed)
    losses = [2 + 8 * 0.99**step + noise * dice.uniform(-1, 1) for step in range(300)]
    assert alarmed(losses) == []
    losses[at - 1] += 20
    assert alarmed(losses) == [at]


@given(seed=st.integers(0, 1000), every=st.integers(1, 3), known=st.integers(0, 290))
def test_a_resumed_run_raises_the_same_alarms(seed: int, every: int, known: int) -> None:
    dice = random.Random(seed)
    losses = [3 + dice.gauss(0, 0.1) + 5 * (dice.random() < 0.05) for _ in range(300)]
    assert alarmed(losses, every, known) == [step for step in alarmed(losses, every) if step > known]


def test_the_first_losses_and_equal_losses_raise_no_alarm() -> None:
    assert alarmed([1.0] * (FEWEST - 1) + [100.0]) == []
    assert alarmed([1.0] * 50 + [1.0005]) == []


class Toxic(TextBytes):
    """Random bytes at step 40, among text."""

    def batch(self, step: int) -> Rows:
        rows = super().batch(step)
        return (
            Rows(np.random.default_rng(0).integers(128, 256, rows.tokens.shape), rows.segments, rows.loss_mask)
            if step == 39
            else rows
        )


def test_a_spike_is_reported_with_the_command_that_explains_it(tmp_path: Path, lines: list[str]) -> None:
    run: Any = small_run(steps=45, log=Log(spike=1.0))
    outcome = train(run, Toxic(), str(tmp_path), say=lines.append)
    assert [row[STEP] for row in read_metrics(outcome.directory) if "alarm/loss" in row] == [40]
    (line,) = [line for line in lines if line.startswith("alarm: at step 40 the loss is")]
    assert line.endswith(f"datakit explain {outcome.directory} --step 40 names the documents")
