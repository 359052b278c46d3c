"""The loop starts a step before it has seen the results of the previous one, and still saves no bad state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datakit.errors import DivergedError
from datakit.trainer.checkpoints.checkpoint import Checkpoints
from datakit.trainer.loop.in_flight import InFlight
from datakit.trainer.metrics.json_lines import read_metrics
from datakit.trainer.metrics.step_metrics import StepMetrics
from datakit.trainer.train import train
from tests.support.trainer.trainer_runs import (
    EXPLODING,
    STEPS,
    Ending,
    PowerCut,
    TextBytes,
    checkpoints_of,
    directory_in,
    saving_run,
    silent,
    small_run,
)


def observed(run: Any, root: Path, monkeypatch: pytest.MonkeyPatch, source: Any = None) -> list[str]:
    """Train; return in which order steps are started and their rows are made."""
    events = list[str]()
    start, row = InFlight.start, StepMetrics.row

    def started(self: InFlight, step: int, *arguments: Any) -> Any:
        events.append(f"start {step}")
        return start(self, step, *arguments)

    def made(self: StepMetrics, step: int, *arguments: Any) -> Any:
        events.append(f"row {step}")
        return row(self, step, *arguments)

    monkeypatch.setattr(InFlight, "start", started)
    monkeypatch.setattr(StepMetrics, "row", made)
    train(run, source or TextBytes(), str(root), say=silent)
    return events


def test_a_step_is_in_flight_while_the_previous_row_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = observed(small_run(checkpoint=Checkpoints(interval_minutes=1e9)), tmp_path, monkeypatch)
    pairs = [(f"start {step + 1}", f"row {step}") for step in range(1, STEPS)]
    assert events == ["start 1", *(event for pair in pairs for event in pair), f"row {STEPS}"]


def test_a_step_whose_state_is_saved_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = observed(saving_run(), tmp_path, monkeypatch)
    for step in (3, 6, 9):
        assert events.index(f"row {step}") < events.index(f"start {step + 1}")


def test_nan_is_seen_one_step_late_and_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(optimizer=EXPLODING, checkpoint=Checkpoints(interval_minutes=1e9))
    with pytest.raises(DivergedError, match="there is no checkpoint yet"):
        train(run, TextBytes(), str(tmp_path), say=silent)
    directory = directory_in(tmp_path)
    rows = read_metrics(directory)
    assert None in (rows[-1]["train/loss"], rows[-1]["optim/grad_norm/all"], rows[-1]["optim/params_norm/adam"])
    assert all(None not in row.values() for row in rows[:-1])
    assert checkpoints_of(directory) == []


def test_the_row_in_flight_is_logged_if_the_data_fail(tmp_path: Path) -> None:
    with pytest.raises(PowerCut):
        train(small_run(), Ending(5), str(tmp_path), say=silent)
    assert [row["global_step"] for row in read_metrics(directory_in(tmp_path))] == [1, 2, 3, 4, 5]
