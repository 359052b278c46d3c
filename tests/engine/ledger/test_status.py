"""The status of a step is read from its files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.engine.ledger.status import read_status
from datakit.engine.observe.observer import Observer
from datakit.engine.task import Tolerance
from datakit.errors import StepFailedError
from tests.support.engine import poison_tasks
from tests.support.engine.poison_tasks import digests
from tests.support.engine.runs import (
    run,
    run_step_of,
)


def test_status_shows_peak_budget_and_skipped_records(tmp_path: Path) -> None:
    run(tmp_path, digests(20, {57: "bomb", 61: "segfault"}, Tolerance(2), memory_bytes=128 << 20))
    status = read_status(str(tmp_path))
    (phase,) = status.phases
    assert (phase.tasks, phase.done, phase.attempts) == (20, 20, 25)
    assert 0.9 * phase.budget < phase.peak_memory < 1.1 * phase.budget and phase.peak_resident > phase.peak_memory
    assert {task.key: task.quarantined for task in status.tasks if task.quarantined} == {"00005": 1, "00006": 1}
    assert all(task.budget for task in status.tasks)


def test_resumed_run_is_not_called_partial(tmp_path: Path) -> None:
    states: set[str] = set()

    class StatusReader(Observer):
        def attempt_ended(self, outcome: object, verdict: object) -> None:
            states.add(read_status(str(tmp_path)).state)

    names = [f"part-{number}" for number in range(3)]
    with pytest.raises(StepFailedError):
        run(tmp_path, poison_tasks.parts(names, "part-1"))
    assert read_status(str(tmp_path)).state == "partial"
    (tmp_path / "mended").touch()
    step = poison_tasks.poison_step(str(tmp_path))
    run_step_of(step, poison_tasks.parts(names, "part-1"), observer=StatusReader())
    assert states == {"unfinished"}
