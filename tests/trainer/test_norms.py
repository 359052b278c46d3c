"""Norms outside their band raise an alarm, in a run too; histograms count every value once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.trainer.metrics.json_lines import STEP, read_metrics
from datakit.trainer.norms import HISTOGRAM_BINS, LEAST_EXPONENT, alarms, histograms
from datakit.trainer.train import train
from tests.support.trainer.trainer_runs import STEPS, TextBytes, checkpoints_of, tiny_run


def test_norms_outside_their_band_are_alarms() -> None:
    begun = {"embed": 100.0, "adamh": 10.0, "router": 0.0}
    calm = {"embed": 480.0, "adamh": 10.05, "router": 3.0}
    assert alarms(calm, begun, (0.2, 5.0), fixed={"adamh"}) == {}
    drifted = {"embed": 2100.0, "adamh": 10.2, "router": 3.0}
    assert alarms(drifted, begun, (0.2, 5.0), fixed={"adamh"}) == pytest.approx({"embed": 21.0, "adamh": 1.02})
    assert alarms(drifted, begun, (0.2, 5.0), fixed=()) == pytest.approx({"embed": 21.0})


def test_run_reports_a_growing_embedding_once_and_logs_its_norm(tmp_path: Path, lines: list[str]) -> None:
    """The learning rate of the embedding is far too high, so its norm leaves the band after a few steps, for good."""
    usual = tiny_run().optimizer
    optimizer = dataclasses.replace(usual, adam_learning_rate=0.2, schedule="constant", warmup=0.0)
    outcome = train(tiny_run(optimizer=optimizer, norm_band=(0.2, 2.0)), TextBytes(), str(tmp_path), say=lines.append)
    begun = checkpoints_of(outcome.directory)[0].marker.norms["embed"]
    ratios = {row[STEP]: row["optim/params_norm/embed"] / begun for row in read_metrics(outcome.directory)}
    outside = {step: pytest.approx(ratio) for step, ratio in ratios.items() if ratio > 2}
    found = {row[STEP]: row["alarm/embed"] for row in read_metrics(outcome.directory) if "alarm/embed" in row}
    assert found == outside
    first = min(found)
    assert 1 < first < STEPS
    said = [line for line in lines if line.startswith("alarm:") and "embed" in line]
    assert said == [f"alarm: at step {first} the norm of embed is {ratios[first]:.3g} times its first value"]


@given(st.lists(st.floats(width=32), min_size=1, max_size=30))
def test_histograms_count_values_by_their_power_of_two(values: list[float]) -> None:
    weights = {"embed": jnp.asarray(values, jnp.float32)}
    nothing = {"embed": jnp.zeros(len(values))}
    after = {"params": weights, "moments": {"mu": nothing}}
    found = histograms(("params", "updates"), nothing, {"params": nothing}, after)
    wanted = np.zeros(HISTOGRAM_BINS, int)
    for value in np.abs(np.asarray(values, np.float32)):
        exponent = int(np.floor(np.log2(value))) if 2.0**-47 <= value < 2.0**17 else (-99 if value < 1 else 99)
        wanted[np.clip(exponent - LEAST_EXPONENT, 0, HISTOGRAM_BINS - 1)] += 1
    assert found["params/histogram/embed"].tolist() == wanted.tolist()
    assert found["updates/histogram/embed"].tolist() == wanted.tolist()
