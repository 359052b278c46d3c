"""The engine's promises, with real children, real faults and real kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from datakit.engine.executor import Attempt, Cause, Outcome, Verdict
from datakit.engine.ledger.ledger import AttemptLine, read_ledger
from datakit.engine.observe.observer import SilentObserver
from datakit.engine.scheduler.driver import RunOptions, run_step
from datakit.engine.task import Phase, Step, Task
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.errors import ColumnError, CorruptError, NotFoundError, PartialError, StepFailedError
from datakit.storage.manifest import Manifest, find_manifest
from tests.support.engine import engine_tasks, poison_tasks
from tests.support.paths import REPOSITORY
from tests.support.processes import ended


@contextmanager
def executor(workers: int = 2) -> Iterator[LocalExecutor]:
    """A local executor that is closed."""
    local = LocalExecutor(workers)
    try:
        yield local
    finally:
        local.close()


def run(directory: Path, count: int = 6, workers: int = 2, **faults: object) -> Manifest:
    """The step of numbers, in `directory`."""
    plan = engine_tasks.numbers(count, **faults)  # pyright: ignore[reportArgumentType]
    with executor(workers) as local:
        return run_step(engine_tasks.number_step(str(directory)), plan, lambda: local, RunOptions(), SilentObserver())


def one(function: str, memory_bytes: int = 1 << 30, **arguments: object) -> Outcome:
    """The outcome of one attempt."""
    with executor(1) as local:
        task = Task("only", f"tests.support.engine.engine_tasks:{function}", dict(arguments))
        local.submit(Attempt(task, "test", "/nowhere", 1, 1, memory_bytes))
        return local.wait(60)[0]


def outputs(directory: Path) -> dict[str, bytes]:
    """Every file of a step but the ledger's."""
    files = (path for path in directory.rglob("*") if path.is_file() and "ledger" not in path.parts)
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_a_step_ends_with_a_manifest_that_sums_its_tasks(tmp_path: Path) -> None:
    manifest = run(tmp_path)
    assert manifest.counters == {"numbers": 12, "sum": sum(range(6)) + 2 * sum(range(6, 12))}
    assert [partition.path for partition in manifest.partitions] == [f"number-{index:03d}.txt" for index in range(12)]
    assert find_manifest(str(tmp_path)) == manifest
    assert not (tmp_path / "exchange").exists()


def test_what_a_phase_made_of_other_files_is_not_taken_for_what_it_would_make_now(tmp_path: Path) -> None:
    def again() -> Manifest:
        with executor(2) as local:
            step = poison_tasks.poison_step(str(tmp_path))
            return run_step(step, poison_tasks.copies(), lambda: local, RunOptions(), SilentObserver())

    (tmp_path / "in").write_text("old")
    with pytest.raises(PartialError):
        again()
    (tmp_path / "mended").touch()
    (tmp_path / "in").write_text("new")
    shutil.rmtree(tmp_path / "exchange")  # so the first phase is done again, with another outcome
    with pytest.raises(PartialError, match="one exists with other content"):
        again()
    (tmp_path / "one").unlink()
    assert len({partition.xxh3 for partition in again().partitions}) == 1


def test_a_step_that_is_done_starts_no_executor(tmp_path: Path) -> None:
    first = run(tmp_path)

    def refuse() -> LocalExecutor:
        raise AssertionError("an executor was asked for")

    step = engine_tasks.number_step(str(tmp_path))
    assert run_step(step, engine_tasks.numbers(6), refuse, RunOptions(), SilentObserver()) == first


def test_workers_do_not_change_a_byte(tmp_path: Path) -> None:
    run(tmp_path / "one", workers=1)
    run(tmp_path / "four", workers=4)
    assert outputs(tmp_path / "one") == outputs(tmp_path / "four")


@pytest.mark.parametrize("fault", ["raise", "segfault", "exit"])
def test_a_fault_that_passes_is_survived_with_the_same_bytes(tmp_path: Path, fault: str) -> None:
    (tmp_path / "markers").mkdir()
    run(tmp_path / "calm")
    run(tmp_path / "stormy", faults={1: fault, 8: fault}, markers=str(tmp_path / "markers"))
    assert outputs(tmp_path / "calm") == outputs(tmp_path / "stormy")


def test_one_poisoned_task_fails_alone_and_the_next_run_retries_only_it(tmp_path: Path) -> None:
    with pytest.raises(PartialError, match="number-002: error after 2 attempts: ValueError at") as caught:
        run(tmp_path, faults={2: "raise"})
    assert "secret" not in str(caught.value)
    assert find_manifest(str(tmp_path)) is None
    partial = json.loads((tmp_path / "partial.json").read_text())
    assert [entry["task"] for entry in partial["failed"]] == ["number-002"]
    attempts_before = [line for line in read_ledger(str(tmp_path)) if isinstance(line, AttemptLine)]
    assert len([line for line in attempts_before if line.cause is Cause.DONE]) == 5
    plan = engine_tasks.numbers(6, faults={2: "segfault"}, markers=str(tmp_path))
    (tmp_path / "2").touch()  # its fault has passed; but its arguments changed, so only equal digests may be reused
    with executor() as local:
        run_step(engine_tasks.number_step(str(tmp_path)), plan, lambda: local, RunOptions(), SilentObserver())
    assert not (tmp_path / "partial.json").exists()


def test_a_typo_stops_the_run_at_once(tmp_path: Path) -> None:
    with pytest.raises(StepFailedError, match="all failed with the same error"):
        run(tmp_path, count=200, faults=dict.fromkeys(range(200), "raise"))
    attempts = [line for line in read_ledger(str(tmp_path)) if isinstance(line, AttemptLine)]
    assert len(attempts) < 30


def test_a_refusal_is_the_users_error_and_is_not_retried(tmp_path: Path) -> None:
    with pytest.raises(ColumnError, match="has no column 'text'"):
        run(tmp_path, faults={3: "refuse"})
    refused = [line for line in read_ledger(str(tmp_path)) if isinstance(line, AttemptLine) and line.attempt > 1]
    assert refused == []


def test_causes_are_told_apart() -> None:
    assert one("write_number", number=1, fault="raise").cause is Cause.ERROR
    assert one("write_number", number=1, fault="refuse").cause is Cause.REFUSED
    crash = one("write_number", number=1, fault="segfault")
    assert (crash.cause, crash.error_type) == (Cause.CRASH, "SIGSEGV")
    assert "engine_tasks.py" in crash.message  # faulthandler says where
    assert one("write_number", number=1, fault="exit").cause is Cause.CRASH
    memory = one("write_number", number=1, fault="memory", memory_bytes=200 << 20)
    assert (memory.cause, memory.error_type) == (Cause.MEMORY, "OverBudget")
    assert memory.peak_memory < 700 << 20


def test_memory_is_tried_again_with_more_until_it_fits(tmp_path: Path) -> None:
    with pytest.raises(PartialError, match="number-001: memory after 3 attempts: used"):
        run(tmp_path, faults={1: "memory"}, memory_bytes=50 << 20)
    attempts = [line for line in read_ledger(str(tmp_path)) if isinstance(line, AttemptLine)]
    budgets = [line.budget >> 20 for line in attempts if line.key == "number-001"]
    assert budgets == [50, 100, 200]


def test_a_child_is_clean() -> None:
    facts = one("look_around").result
    assert facts is not None
    modules = facts.details["modules"]
    assert not {"ray", "jax", "datakit.cli", "pytest", "_pytest"} & set(modules)
    assert facts.details["main"] is None  # not pytest's, not the fork server's
    assert facts.details["threads"] == 1
    assert facts.details["arrow"] == 1 and facts.details["rayon"] == "1"


def test_a_preload_that_fails_is_reported_with_its_reason(tmp_path: Path) -> None:
    with executor(1) as local:
        task = Task("only", "tests.support.engine.engine_tasks:look_around", {})
        local.submit(Attempt(task, "test", str(tmp_path), 1, 1, 1 << 30, (engine_tasks.BAD_PRELOAD,)))
        outcome = local.wait(30)[0]
    assert outcome.cause is Cause.REFUSED
    assert outcome.message == "the tokenizer has no vocabulary"


def test_what_is_abandoned_ends_and_reports_to_nobody(tmp_path: Path) -> None:
    with executor(2) as local:
        slow = Task("slow", "tests.support.engine.engine_tasks:write_number", {"number": 1, "fault": "sleep"})
        local.submit(Attempt(slow, "test", str(tmp_path), 1, 1, 1 << 30))
        _until(lambda: len(psutil.Process().children(recursive=True)) >= 3)
        local.abandon()
        _until(lambda: len(psutil.Process().children(recursive=True)) == 2)  # the fork server and its watcher
        quick = Task("quick", "tests.support.engine.engine_tasks:look_around", {})
        local.submit(Attempt(quick, "test", str(tmp_path), 1, 1, 1 << 30))
        outcomes = local.wait(20) + local.wait(0.5)
    assert [outcome.key for outcome in outcomes] == ["quick"]


def test_closing_leaves_no_process(tmp_path: Path) -> None:
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with executor(2) as local:
        task = Task("only", "tests.support.engine.engine_tasks:write_number", {"number": 1, "fault": "sleep"})
        local.submit(Attempt(task, "test", str(tmp_path), 1, 1, 1 << 30))
        _until(lambda: len({process.pid for process in psutil.Process().children(recursive=True)} - before) >= 3)
    _until(lambda: {process.pid for process in psutil.Process().children(recursive=True)} <= before)


DRIVER = """
import sys
from datakit.engine.scheduler.driver import RunOptions, run_step
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.engine.observe.observer import SilentObserver
from tests import engine_tasks, poison_tasks
from tests.support.processes import ended
local = LocalExecutor(2)
plan = engine_tasks.numbers(6, faults={3: "sleep"}, markers=sys.argv[2])
run_step(engine_tasks.number_step(sys.argv[1]), plan, lambda: local, RunOptions(), SilentObserver())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_driver_leaves_no_orphan_and_the_next_run_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "markers").mkdir()
    run(tmp_path / "calm")
    directory = tmp_path / "killed"
    command = [sys.executable, "-c", DRIVER, str(directory), str(tmp_path / "markers")]
    driver = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    _until(lambda: (tmp_path / "markers" / "3").exists() and _lines(directory) >= 4)
    family = psutil.Process(driver.pid).children(recursive=True)
    assert family
    driver.send_signal(number)
    driver.wait(timeout=10)
    _until(lambda: all(ended(process) for process in family))
    done = {line.key for line in read_ledger(str(directory)) if isinstance(line, AttemptLine)}
    manifest = run(directory, markers=str(tmp_path / "markers"), faults={3: "sleep"})
    again = [line.key for line in read_ledger(str(directory)) if isinstance(line, AttemptLine)]
    assert len(again) == len(set(again)), "a task that was in the ledger was run again"
    assert done < set(again)
    assert manifest.totals.rows == 12
    assert outputs(directory) == outputs(tmp_path / "calm")


def _lines(directory: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (directory / "ledger").glob("*")) if directory.exists() else 0


def test_an_output_that_vanished_is_made_again(tmp_path: Path) -> None:
    run(tmp_path)
    before = outputs(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "number-004.txt").unlink()
    run(tmp_path)
    assert outputs(tmp_path) == before


class Meddler(SilentObserver):
    """Does something to the step's directory when the second phase begins."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        self._meddle = meddle
        self.done: list[str] = []

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        if phase.name == "second":
            self._meddle()

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        self.done += [outcome.key, *(one.key for one in outcome.more)]


def meddled(directory: Path, meddle: Callable[[], object]) -> tuple[Manifest, list[str]]:
    """The step of numbers with one, and the tasks that it ran."""
    observer, plan = Meddler(meddle), engine_tasks.numbers(6)
    with executor() as local:
        step = engine_tasks.number_step(str(directory))
        return run_step(step, plan, lambda: local, RunOptions(), observer), observer.done


def test_an_output_that_vanishes_while_the_run_goes_on_is_missed_and_made_again(tmp_path: Path) -> None:
    step, untouched = tmp_path / "step", run(tmp_path / "untouched")

    def tidy() -> None:
        (step / "number-002.txt").unlink()
        (step / "number-004.txt").unlink()

    with pytest.raises(NotFoundError, match=r"number-002\.txt is missing from .*step; .* run again"):
        meddled(step, tidy)
    assert find_manifest(str(step)) is None
    manifest, done = meddled(step, lambda: None)
    assert (manifest, sorted(done)) == (untouched, ["number-002", "number-004"])
    assert outputs(step) == outputs(tmp_path / "untouched")


def test_an_output_that_changes_while_the_run_goes_on_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "number-002.txt"
    with pytest.raises(CorruptError, match=r"number-002\.txt .* has 4 bytes, its task wrote 1; .* remove it and run"):
        meddled(tmp_path, lambda: path.write_text("else"))
    path.unlink()
    assert meddled(tmp_path, lambda: None)[1] == ["number-002"]


def test_a_torn_last_line_of_the_ledger_is_forgiven_and_any_other_is_not(tmp_path: Path) -> None:
    run(tmp_path)
    (segment,) = (tmp_path / "ledger").iterdir()
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-20])
    assert list(read_ledger(str(tmp_path)))
    segment.write_bytes(whole[:50] + whole[60:])
    with pytest.raises(CorruptError, match="line 1"):
        list(read_ledger(str(tmp_path)))


def test_temporary_files_of_dead_processes_are_removed_and_of_living_ones_kept(tmp_path: Path) -> None:
    host = os.uname().nodename.replace("-", "_")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    gone, kept = tmp_path / f".tmp-{host}-{dead.pid}-x-a.txt", tmp_path / f".tmp-{host}-{os.getpid()}-x-a.txt"
    gone.touch()
    kept.touch()
    run(tmp_path)
    assert not gone.exists() and kept.exists()


def test_scratch_folders_of_dead_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone, kept = tmp_path / f"datakit-scratch-{dead.pid}-x", tmp_path / f"datakit-scratch-{os.getpid()}-x"
    gone.mkdir()
    kept.mkdir()
    (gone / "spill").write_bytes(bytes(100))
    assert one("look_around").cause is Cause.DONE
    assert list(tmp_path.iterdir()) == [kept]


def test_two_tasks_of_a_phase_may_not_share_a_key(tmp_path: Path) -> None:
    def plan():
        task = Task("same", "tests.support.engine.engine_tasks:look_around", {})
        yield Phase("only", (task, replace(task)))
        raise AssertionError("the phase ran")

    with executor(1) as local, pytest.raises(ValueError, match="two tasks have the same key"):
        run_step(engine_tasks.number_step(str(tmp_path)), plan(), lambda: local, RunOptions(), SilentObserver())


def _until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
