"""A task that writes too much is refused while it runs, and a run stops before a disk is full."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from datakit.engine.disk_limits import DiskLimits
from datakit.engine.executor import Attempt, Cause, Outcome
from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler.driver import run_step
from datakit.engine.task import Step, Task
from datakit.engine.worker.disk_use import written_bytes
from datakit.errors import ExpansionError, NoSpaceError, RefusedInputsError
from tests.support.engine.disk_tasks import task, writers, writing_step
from tests.support.engine.runs import attempts, run_step_of, shared_executor, wait_until

FLOOR = 1 << 20
LIMITS = DiskLimits(max_expansion=10, expansion_floor_bytes=FLOOR)


def run(directory: Path, *tasks: Task, limits: DiskLimits = LIMITS) -> Outcome:
    """Return the outcome of one attempt at all these tasks."""
    executor = shared_executor(1)
    executor.submit(Attempt(tasks[0], "write", str(directory), 1, 1, 1 << 30, more=tasks[1:], limits=limits))
    (outcome,) = executor.wait(120)
    return outcome


def test_own_writes_are_counted() -> None:
    before = written_bytes("self")
    Path("/dev/null").write_bytes(bytes(1_000))
    assert written_bytes("self") - before >= 1_000
    assert written_bytes(1 << 30) == 0, "no such process"


def test_endless_writer_is_stopped_and_its_file_named(tmp_path: Path) -> None:
    outcome = run(tmp_path, task("only", file="a\x1b[31m/bomb.parquet"))
    assert (outcome.cause, outcome.error_type) == (Cause.REFUSED, ExpansionError.__name__)
    assert outcome.message.startswith("a\\x1b[31m/bomb.parquet: reading this file makes a task write at least")
    assert "its limit is 1,048,576 bytes" in outcome.message and outcome.written > FLOOR


def test_writer_that_ends_before_a_check_is_refused_all_the_same(tmp_path: Path) -> None:
    assert run(tmp_path, task("only", bytes=FLOOR)).cause is Cause.DONE
    outcome = run(tmp_path, task("only", bytes=FLOOR + 1))
    assert (outcome.cause, outcome.error_type) == (Cause.REFUSED, ExpansionError.__name__)
    assert outcome.message.startswith("task only of phase write writes at least 1,048,577 bytes")


def test_limit_follows_the_stored_input(tmp_path: Path) -> None:
    assert run(tmp_path, task("only", FLOOR, bytes=10 * FLOOR)).cause is Cause.DONE
    compressed = replace(task("only", FLOOR, bytes=2 * FLOOR), stored_bytes=FLOOR // 100)
    assert run(tmp_path, compressed).cause is Cause.REFUSED


def test_tasks_of_a_batch_are_measured_separately(tmp_path: Path) -> None:
    honest = [task(f"{number}", bytes=FLOOR) for number in range(3)]
    outcome = run(tmp_path, *honest)
    assert outcome.cause is Cause.DONE and outcome.written >= 3 * FLOOR
    outcome = run(tmp_path, *honest, task("bomb"))
    assert outcome.cause is Cause.REFUSED and outcome.message.startswith("task bomb of phase write")


def test_bombs_are_reported_together_after_the_other_tasks(tmp_path: Path) -> None:
    bombs = [task(f"bomb-{number}", file=f"bomb-{number}.gz") for number in range(2)]
    step = writing_step(tmp_path, LIMITS)
    with pytest.raises(RefusedInputsError, match=r"(?s)2 inputs cannot be used.*bomb-0\.gz.*bomb-1\.gz"):
        run_step_of(step, writers(*bombs, task("honest", bytes=10)))
    found = {line.key: (line.attempt, line.cause) for line in attempts(tmp_path)}
    assert found == {"bomb-0": (1, "refused"), "bomb-1": (1, "refused"), "honest": (1, "done")}, (
        "no bomb is tried twice"
    )


def test_a_higher_limit_continues_the_step(tmp_path: Path) -> None:
    tasks = task("large", bytes=2 * FLOOR), task("small", bytes=10)
    with pytest.raises(ExpansionError):
        run_step_of(writing_step(tmp_path, LIMITS), writers(*tasks))
    run_step_of(writing_step(tmp_path, replace(LIMITS, expansion_floor_bytes=3 * FLOOR)), writers(*tasks))
    assert [(line.key, line.cause) for line in attempts(tmp_path)].count(("small", Cause.DONE)) == 1


def test_step_stops_while_its_disk_has_too_little_space(tmp_path: Path) -> None:
    step = writing_step(tmp_path, replace(LIMITS, min_free_bytes=1 << 60))
    with pytest.raises(NoSpaceError, match=r"the disk of .* must stay free \(limits.min_free_bytes\).*run again"):
        run_step_of(step, writers(task("only", bytes=10)))


class Totals(Observer):
    """Remembers the largest number of bytes that running attempts were reported to have written."""

    most = 0

    def disk_written(self, step: Step, running: int) -> None:
        self.most = max(self.most, running)


def test_running_tasks_report_what_they_have_written(tmp_path: Path) -> None:
    totals, gate = Totals(), tmp_path / "gate"

    class Opens(Totals):
        def tick(self) -> None:
            if self.most >= FLOOR:
                gate.touch()

    totals = Opens()
    run_step_of(writing_step(tmp_path / "step", LIMITS), writers(task("only", bytes=FLOOR, gate=str(gate))), 1, totals)
    assert FLOOR <= totals.most < FLOOR + 100_000


def test_report_of_an_ended_attempt_is_dropped(tmp_path: Path) -> None:
    executor = shared_executor(1)
    run_step(writing_step(tmp_path, LIMITS), writers(task("only", bytes=FLOOR)), lambda: executor, Observer())
    wait_until(lambda: executor.written(str(tmp_path)) == 0)
