"""Every task of a phase is done or its failure is named; failures alike stop the phase early."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from datakit.engine.executor import Attempt, Cause
from datakit.engine.ledger.status import read_status
from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler import phase_run
from datakit.engine.scheduler.driver import run_step
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.errors import ColumnError, NoSpaceError, PartialError, RefusedInputsError, StepFailedError
from datakit.storage.manifest import find_manifest
from tests.support.engine import poison_tasks
from tests.support.engine.poison_tasks import digests
from tests.support.engine.runs import (
    attempts,
    outputs,
    run,
    run_numbers,
)


@pytest.mark.parametrize("fault", ["raise", "segfault", "exit"])
def test_transient_fault_does_not_change_output(tmp_path: Path, fault: str) -> None:
    (tmp_path / "markers").mkdir()
    run_numbers(tmp_path / "calm")
    run_numbers(tmp_path / "stormy", faults={1: fault, 8: fault}, markers=str(tmp_path / "markers"))
    assert outputs(tmp_path / "calm") == outputs(tmp_path / "stormy")


def test_next_run_retries_only_the_failed_task(tmp_path: Path) -> None:
    with pytest.raises(PartialError, match="number-002: error after 2 attempts: ValueError at") as caught:
        run_numbers(tmp_path, faults={2: "raise"})
    assert "secret" not in str(caught.value)
    assert find_manifest(str(tmp_path)) is None
    partial = json.loads((tmp_path / "partial.json").read_text())
    assert [entry["task"] for entry in partial["failed"]] == ["number-002"]
    assert len([line for line in attempts(tmp_path) if line.cause is Cause.DONE]) == 5
    (tmp_path / "2").touch()  # the fault has passed, but the arguments changed, so only equal digests may be reused
    run_numbers(tmp_path, faults={2: "segfault"}, markers=str(tmp_path))
    assert not (tmp_path / "partial.json").exists()


def test_same_error_everywhere_stops_the_run_numbers(tmp_path: Path) -> None:
    with pytest.raises(StepFailedError, match="all failed with the same error"):
        run_numbers(tmp_path, count=200, faults=dict.fromkeys(range(200), "raise"))
    assert len(attempts(tmp_path)) < 30


def test_same_crash_everywhere_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(StepFailedError, match="the first 5 tasks of phase digest all failed with the same error"):
        run(tmp_path, digests(300, dict.fromkeys(range(3000), "segfault")))
    assert len(attempts(tmp_path)) < 40


def test_input_error_is_not_retried(tmp_path: Path) -> None:
    with pytest.raises(ColumnError, match="has no column 'text'"):
        run_numbers(tmp_path, faults={3: "refuse"})
    assert {line.attempt for line in attempts(tmp_path)} == {1}


def test_refused_inputs_are_reported_together(tmp_path: Path) -> None:
    """Other tasks go on, so a run finds all of them. The error shows the first ones and names the file with all."""
    with pytest.raises(RefusedInputsError, match=r"^25 inputs cannot be used:\n  part-0 of") as caught:
        run_numbers(tmp_path, count=60, faults=dict.fromkeys(range(0, 50, 2), "refuse own"))
    *shown, last = str(caught.value).splitlines()[1:]
    assert len(shown) == 20
    assert last.split("; ") == ["  and 5 more", f"all are listed in {tmp_path}/partial.json"]
    listed = json.loads((tmp_path / "partial.json").read_text())["failed"]
    assert sorted(entry["why"] for entry in listed) == sorted(caught.value.messages)
    assert len([line for line in attempts(tmp_path) if line.cause is Cause.DONE]) == 35
    assert read_status(str(tmp_path)).state == "partial"


def test_phase_stops_when_every_task_refuses_its_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase_run, "MOST_REFUSALS", 4)
    with pytest.raises(RefusedInputsError, match=r"^4 inputs cannot be used"):
        run_numbers(tmp_path, count=60, faults=dict.fromkeys(range(60), "refuse own"))


def test_memory_budget_is_raised_twice(tmp_path: Path) -> None:
    with pytest.raises(PartialError, match="number-001: memory after 3 attempts: used"):
        run_numbers(tmp_path, faults={1: "memory"}, memory_bytes=50 << 20)
    budgets = [line.budget >> 20 for line in attempts(tmp_path) if line.key == "number-001"]
    assert budgets == [50, 100, 200]


def test_last_memory_retry_runs_exclusively(tmp_path: Path) -> None:
    plan = digests(20, {57: "bomb"}, seconds=0.01, memory_bytes=128 << 20)
    with pytest.raises(PartialError):
        run(tmp_path, plan, memory_bytes=512 << 20)
    lines = [line for line in attempts(tmp_path) if line.key == "00005"]
    assert [line.budget >> 20 for line in lines] == [128, 256, 512]
    assert {line.cause for line in lines} == {Cause.MEMORY}
    assert all(0.9 * line.budget < line.peak_memory < 1.1 * line.budget for line in lines)
    last = lines[-1]
    others = [line for line in attempts(tmp_path) if line.key != "00005"]
    start = last.time - last.seconds + 1.0  # on a busy machine the ledger records ends late
    assert all(line.time <= start for line in others), "something ran at the same time"


def test_tiny_tasks_share_children(tmp_path: Path) -> None:
    manifest = run(tmp_path, poison_tasks.naps(600, 0.001))
    assert manifest.details["children"] < 150
    lines = attempts(tmp_path)
    assert len(lines) == len({line.key for line in lines}) == 600
    assert all(line.cause is Cause.DONE and line.result is not None for line in lines)


def test_crash_in_a_batch_names_its_task(tmp_path: Path) -> None:
    with pytest.raises(PartialError, match="1 of 400 tasks failed\n  000300: crash after 2 attempts: SIGSEGV"):
        run(tmp_path, poison_tasks.naps(400, 0.001, {300: "segfault"}))
    assert len({line.key for line in attempts(tmp_path) if line.cause is Cause.DONE}) == 399


def test_tasks_of_a_failed_batch_get_children_of_their_own(tmp_path: Path) -> None:
    made: list[Attempt] = []

    class Submits(LocalExecutor):
        def submit(self, attempt: Attempt) -> None:
            made.append(attempt)
            super().submit(attempt)

    with contextlib.closing(Submits(2)) as executor, pytest.raises(PartialError):
        step = poison_tasks.poison_step(str(tmp_path))
        run_step(step, poison_tasks.naps(400, 0.001, {300: "segfault"}), lambda: executor, Observer())
    (broken,) = (one for one in made if "000300" in {task.key for task in one.more})
    again = {task.key for task in (broken.task, *broken.more)}
    assert all(one.own_child == (one.task.key in again) for one in made if one is not broken)
    assert not broken.own_child


def test_full_disk_ends_the_step_at_once(tmp_path: Path) -> None:
    with pytest.raises(NoSpaceError, match="no space left to write /dev/full") as caught:
        run_numbers(tmp_path, 40, faults={3: "full"})
    assert caught.value.exit_code == 1
    assert run_numbers(tmp_path, 40).totals.rows == 80
