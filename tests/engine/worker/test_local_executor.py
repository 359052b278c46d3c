"""The local executor leaves no process behind, and a silent attempt lends its slot."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from datakit.engine.executor import Attempt, Cause, Outcome
from datakit.engine.task import Task
from datakit.engine.worker import local_executor
from datakit.storage import stale_files
from tests.support.engine import poison_tasks
from tests.support.engine.runs import (
    fresh_executor,
    run,
    wait_until,
)
from tests.support.faults.abandoned import abandoned_scratch


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def test_cancelled_attempt_ends_without_an_outcome(tmp_path: Path) -> None:
    before = children()
    with fresh_executor() as local:
        slow = Task("slow", "tests.support.engine.engine_tasks:write_number", {"number": 1, "fault": "sleep"})
        local.submit(Attempt(slow, "test", str(tmp_path), 1, 1, 1 << 30))
        wait_until(lambda: len(children() - before) >= 4)
        local.cancel(str(tmp_path))
        wait_until(lambda: len(children() - before) == 3)  # the template process, the fork server and its watcher
        quick = Task("quick", "tests.support.engine.engine_tasks:look_around", {})
        local.submit(Attempt(quick, "test", str(tmp_path), 1, 1, 1 << 30))
        outcomes = local.wait(120) + local.wait(0.5)
    assert [outcome.key for outcome in outcomes] == ["quick"]


def test_closing_leaves_no_process(tmp_path: Path) -> None:
    before = children()
    with fresh_executor() as local:
        task = Task("only", "tests.support.engine.engine_tasks:write_number", {"number": 1, "fault": "sleep"})
        local.submit(Attempt(task, "test", str(tmp_path), 1, 1, 1 << 30))
        wait_until(lambda: len(children() - before) >= 4)
    wait_until(lambda: children() <= before)


def test_closing_starts_nothing_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def waits(attempt: Attempt, servers: object, cancelled: threading.Event, *reports: object, seat: object) -> Outcome:
        started.append(attempt.task.key)
        assert cancelled.wait(120)
        return Outcome.of(attempt, Cause.CANCELLED)

    monkeypatch.setattr(local_executor, "run_attempt", waits)
    with fresh_executor(1) as local:
        for name in ("runs", "waits"):
            local.submit(Attempt(Task(name, "tests:none", {}), "test", str(tmp_path / name), 1, 1, 1 << 30))
        wait_until(lambda: started == ["runs"])
    assert started == ["runs"] and not local._running


def test_silent_attempt_lends_its_slot(tmp_path: Path) -> None:
    # Without lending, the waiting task would be killed as a hang twice and fail.
    assert run(tmp_path, poison_tasks.waits(10, hang_seconds=8.0), workers=1).counters == {"waited": 1, "files": 10}


def test_scratch_of_dead_processes_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = abandoned_scratch(tmp_path)
    (gone / "spill").write_bytes(bytes(100))
    with stale_files.scratch_directory() as kept, fresh_executor(1) as local:
        task = Task("only", "tests.support.engine.engine_tasks:look_around", {})
        local.submit(Attempt(task, "test", str(tmp_path), 1, 1, 1 << 30))
        assert local.wait(120)[0].cause is Cause.DONE
        assert [path for path in tmp_path.iterdir() if path.is_dir()] == [kept]


def test_child_holds_the_lock_of_its_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the driver be killed, its next run leaves the directory alone until the child is dead too."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with fresh_executor(1) as local:
        slow = Task("slow", "tests.support.engine.engine_tasks:write_number", {"number": 1, "fault": "sleep"})
        local.submit(Attempt(slow, "test", str(tmp_path), 1, 1, 1 << 30))
        wait_until(lambda: len(_open_locks(str(tmp_path))) == 2)
        holders = _open_locks(str(tmp_path))
        assert os.getpid() in holders and len(set(holders)) == 2


def _open_locks(folder: str) -> list[int]:
    """Return the ids of those processes, this one and its descendants, that have a lock file in this folder open."""
    us = psutil.Process()
    found = []
    for process in (us, *us.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            names = [file.path for file in process.open_files()]
            found += [process.pid for name in names if name.startswith(folder) and name.endswith(".lock")]
    return found
