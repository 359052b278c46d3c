"""A step runs to its manifest once, resumes where it stopped, and survives a killed driver."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler.driver import run_step
from datakit.engine.task import Output, Phase, Plan, Task
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.errors import PartialError
from datakit.storage import atomic
from datakit.storage.manifest import Partition, find_manifest
from tests.support.engine import engine_tasks, poison_tasks
from tests.support.engine.runs import (
    attempts,
    outputs,
    run,
    run_numbers,
    run_step_of,
    wait_until,
)
from tests.support.faults.abandoned import unlocked_name
from tests.support.paths import REPOSITORY
from tests.support.processes import ended


def test_manifest_sums_the_counters_of_tasks(tmp_path: Path) -> None:
    manifest = run_numbers(tmp_path)
    assert manifest.counters == {"numbers": 12, "sum": sum(range(6)) + 2 * sum(range(6, 12))}
    assert [partition.path for partition in manifest.partitions] == [f"number-{index:03d}.txt" for index in range(12)]
    assert find_manifest(str(tmp_path)) == manifest
    assert not (tmp_path / "exchange").exists()


def test_results_after_a_changed_phase_are_not_reused(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("old")
    with pytest.raises(PartialError):
        run(tmp_path, poison_tasks.copies())
    (tmp_path / "mended").touch()
    (tmp_path / "in").write_text("new")
    shutil.rmtree(tmp_path / "exchange")  # so the first phase is rerun, with another result
    with pytest.raises(PartialError, match="one exists with different content"):
        run(tmp_path, poison_tasks.copies())
    (tmp_path / "one").unlink()
    assert len({partition.xxh3 for partition in run(tmp_path, poison_tasks.copies()).partitions}) == 1


def test_finished_step_starts_no_executor(tmp_path: Path) -> None:
    first = run_numbers(tmp_path)

    def refuse() -> LocalExecutor:
        raise AssertionError("an executor was requested")

    step = engine_tasks.number_step(str(tmp_path))
    assert run_step(step, engine_tasks.numbers(6), refuse, Observer()) == first


def test_worker_count_does_not_change_output(tmp_path: Path) -> None:
    run_numbers(tmp_path / "one", workers=1)
    run_numbers(tmp_path / "four", workers=4)
    assert outputs(tmp_path / "one") == outputs(tmp_path / "four")


DRIVER = """
import sys
from datakit.engine.scheduler.driver import run_step
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.engine.observe.observer import Observer
from tests.support.engine import engine_tasks
local = LocalExecutor(2)
plan = engine_tasks.numbers(6, faults={3: "sleep"}, markers=sys.argv[2])
run_step(engine_tasks.number_step(sys.argv[1]), plan, lambda: local, Observer())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_driver_leaves_no_orphans_and_is_resumed(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "markers").mkdir()
    run_numbers(tmp_path / "calm")
    directory = tmp_path / "killed"
    command = [sys.executable, "-c", DRIVER, str(directory), str(tmp_path / "markers")]
    driver = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    wait_until(lambda: (tmp_path / "markers" / "3").exists() and _lines(directory) >= 4)
    family = psutil.Process(driver.pid).children(recursive=True)
    assert family
    driver.send_signal(number)
    driver.wait(timeout=60)
    wait_until(lambda: all(ended(process) for process in family))
    done = {line.key for line in attempts(directory)}
    manifest = run_numbers(directory, markers=str(tmp_path / "markers"), faults={3: "sleep"})
    again = [line.key for line in attempts(directory)]
    assert len(again) == len(set(again)), "a task that was in the ledger was run again"
    assert done < set(again)
    assert manifest.totals.rows == 12
    assert outputs(directory) == outputs(tmp_path / "calm")


def _lines(directory: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (directory / "ledger").glob("*")) if directory.exists() else 0


def test_missing_output_is_written_again(tmp_path: Path) -> None:
    run_numbers(tmp_path)
    before = outputs(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "number-004.txt").unlink()
    run_numbers(tmp_path)
    assert outputs(tmp_path) == before


def test_temporary_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    gone = unlocked_name(tmp_path, "a.txt")
    gone.touch()
    with atomic.staging(str(tmp_path / "b.txt")) as kept:
        run_numbers(tmp_path)
        assert not gone.exists() and kept.exists()


def test_tasks_of_a_phase_need_distinct_keys(tmp_path: Path) -> None:
    def plan():
        task = Task("same", "tests.support.engine.engine_tasks:look_around", {})
        yield Phase("only", (task, replace(task)))
        raise AssertionError("the phase ran")

    with pytest.raises(ValueError, match="two tasks have the same key"):
        run_step_of(engine_tasks.number_step(str(tmp_path)), plan())


def test_records_left_for_a_later_run_end_the_step_as_partial(tmp_path: Path) -> None:
    """The next run repeats just these tasks."""
    step, marker = tmp_path / "step", tmp_path / "marker"

    def plan() -> Plan:
        task = "tests.support.engine.engine_tasks:write_some"
        tasks = [Task(str(n), task, {"number": n, "marker": str(marker)}) for n in range(6)]
        results = yield Phase("some", tuple(tasks))
        parts = [Partition(file.path, "s", 1, file.bytes, file.xxh3) for one in results for file in one.outputs]
        return Output(parts, engine_tasks.SCHEMA)

    for _ in range(2):
        with pytest.raises(
            PartialError, match=r"9 records of 3 tasks left for a later run.*\n.*budget is spent; raise it"
        ):
            run(step, plan())
    (entry,) = json.loads((step / "partial.json").read_text())["failed"]
    assert (entry["open"], entry["why"]) == (9, "the budget is spent; raise it")
    marker.touch()
    manifest = run(step, plan())
    assert manifest.counters["numbers"] == 6 and not (step / "partial.json").exists()
    done = [(line.key, line.result.open) for line in attempts(step) if line.result is not None]
    assert sorted(done) == sorted([(str(n), 0) for n in range(6)] + [(str(n), n) for n in (1, 3, 5)] * 2)
