"""Fixtures of the trainer's tests: one compiled training step for all of them, and one finished run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from datakit.trainer import train as loop
from datakit.trainer.config import Run
from datakit.trainer.step import Trainer
from tests.support.trainer_runs import TextBytes, saving_run, silent

TRAINERS: dict[Any, Trainer] = {}


@pytest.fixture(autouse=True)
def shared_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give equal runs of one process the same `Trainer`. It has no state, so they only share its compiled functions."""
    make = loop.trainer_of

    def shared(run: Run, devices: Sequence[Any] | None = None) -> Trainer:
        key = (run.kind, run.model, run.optimizer, run.steps, run.replicas, run.log.watch, devices and tuple(devices))
        if key not in TRAINERS:
            TRAINERS[key] = make(run, devices)
        return TRAINERS[key]

    monkeypatch.setattr(loop, "trainer_of", shared)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of an uninterrupted run with checkpoints at steps 3, 6, 9 and 12. Tests must not change it."""
    return loop.train(saving_run(), TextBytes(), str(tmp_path_factory.mktemp("finished")), say=silent).directory


@pytest.fixture
def lines() -> list[str]:
    """Lines that a run says."""
    return []
