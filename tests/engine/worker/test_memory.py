"""Out of memory is known, not guessed: for each library, whichever way it goes over its budget."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from datakit.engine.executor import Attempt, Cause, Outcome
from datakit.engine.task import Task
from datakit.engine.worker import memory_watcher
from datakit.engine.worker.local_executor import LocalExecutor
from tests.support.engine.memory_tasks import LIBRARIES
from tests.support.processes import ended, kill

BUDGET = 192 << 20
KINDS = {  # library -> the error of one request that can never be met
    "python": "MemoryError",
    "numpy": "MemoryError",
    "arrow": "ArrowMemoryError",
    "duckdb": "OutOfMemoryException",
    "tokenizers": "FailedAllocation",
    "fastokens": "FailedAllocation",
    "tensorstore": "FailedAllocation",
}


def overfill(library: str, at_once: bool) -> Outcome:
    """How the attempt ends."""
    executor = LocalExecutor(1)
    try:
        task = Task("only", "tests.support.engine.memory_tasks:overfill", {"library": library, "at_once": at_once})
        executor.submit(Attempt(task, "test", "/nowhere", 1, 1, BUDGET))
        return executor.wait(60)[0]
    finally:
        executor.close()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_grows_over_its_budget_is_stopped_in_time(library: str) -> None:
    outcome = overfill(library, at_once=False)
    assert outcome.cause is Cause.MEMORY, outcome.message
    assert 0.9 * BUDGET < outcome.peak_memory < 1.1 * BUDGET
    assert f"its budget is {BUDGET >> 20} MiB" in outcome.message


@pytest.mark.parametrize("library", LIBRARIES)
def test_one_request_that_can_never_be_met_is_memory_too(library: str) -> None:
    outcome = overfill(library, at_once=True)
    assert outcome.cause is Cause.MEMORY, outcome.message
    assert outcome.error_type.endswith(KINDS[library])  # numpy's is _ArrayMemoryError, or not


@pytest.mark.parametrize(("used", "reserved"), [(0.9, 0.0), (0.5, 3.0)])
def test_what_stays_below_its_budget_is_left_alone_however_fast_it_grows(used: float, reserved: float) -> None:
    executor = LocalExecutor(4)
    arguments = {"bytes": int(used * BUDGET), "reserved": int(reserved * BUDGET)}
    try:
        for number in range(12):
            task = Task(str(number), "tests.support.engine.memory_tasks:fill", arguments)
            executor.submit(Attempt(task, "test", "/nowhere", 1, 1, BUDGET))
        outcomes: list[Outcome] = []
        while len(outcomes) < 12:
            outcomes += executor.wait(1.0)
    finally:
        executor.close()
    assert [outcome.message for outcome in outcomes] == [""] * 12


@pytest.mark.parametrize(("budget", "cause"), [(64 << 20, Cause.MEMORY), (128 << 20, Cause.DONE)])
def test_only_a_small_budget_bounds_what_is_reserved_and_not_used(budget: int, cause: Cause) -> None:
    executor = LocalExecutor(1)
    try:
        task = Task("only", "tests.support.engine.memory_tasks:fill", {"bytes": 16 << 20, "reserved": 200 << 20})
        executor.submit(Attempt(task, "test", "/nowhere", 1, 1, budget))
        assert executor.wait(60)[0].cause is cause
    finally:
        executor.close()


def test_without_its_watcher_no_child_runs_on(tmp_path: Path) -> None:
    executor = LocalExecutor(1)
    try:
        task = Task("only", "tests.support.engine.engine_tasks:write_number", {"number": 1, "fault": "sleep"})
        executor.submit(Attempt(task, "test", str(tmp_path), 1, 1, BUDGET))
        watchers: list[psutil.Process] = []
        while not watchers:
            watchers = [process for process in psutil.Process().children(recursive=True) if is_watcher(process)]
        kill(watchers)
        assert executor.wait(60)[0].cause is Cause.INFRASTRUCTURE
        task = Task("next", "tests.support.engine.memory_tasks:overfill", {"library": "numpy", "at_once": False})
        cause = Cause.INFRASTRUCTURE
        for _ in range(20):  # as often as a driver tries: the server that leaves may be asked once more
            if cause is Cause.INFRASTRUCTURE:
                executor.submit(Attempt(task, "test", str(tmp_path), 1, 1, BUDGET))
                cause = executor.wait(60)[0].cause
        assert cause is Cause.MEMORY
    finally:
        executor.close()


def is_watcher(process: psutil.Process) -> bool:
    """Whether this is what looks at the children's memory."""
    return not ended(process) and process.name() == memory_watcher.PROCESS_NAME.decode()
