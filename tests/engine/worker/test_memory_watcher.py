"""Children over their budget are killed in time, and those below it are left alone."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from datakit.engine.executor import Attempt, Cause, Outcome
from datakit.engine.task import Task
from datakit.engine.worker import memory_watcher
from datakit.engine.worker.local_executor import LocalExecutor
from tests.support.engine.attempts import attempt, run_all
from tests.support.engine.memory_tasks import LIBRARIES
from tests.support.engine.runs import DEADLINE_SECONDS, shared_executor
from tests.support.faults.cluster import wait_until
from tests.support.processes import ended, kill

BUDGET = 192 << 20
ERROR_TYPES = {  # library -> the error of one request that cannot be met
    "python": "MemoryError",
    "numpy": "MemoryError",
    "arrow": "ArrowMemoryError",
    "duckdb": "OutOfMemoryException",
    "tokenizers": "FailedAllocation",
    "fastokens": "FailedAllocation",
    "tensorstore": "FailedAllocation",
}


def memory_attempt(function: str, budget: int = BUDGET, **arguments: object) -> Attempt:
    """Return an attempt at a function of memory_tasks."""
    task = Task("only", f"tests.support.engine.memory_tasks:{function}", arguments)
    return Attempt(task, "test", "/nowhere", 1, 1, budget)


def overfill(library: str, at_once: bool, executor: LocalExecutor | None = None) -> Outcome:
    """Return the outcome of an attempt in which a library uses more memory than it may."""
    return run_all(executor or shared_executor(1), [memory_attempt("overfill", library=library, at_once=at_once)])[0]


@pytest.mark.parametrize("library", LIBRARIES)
def test_growth_over_the_budget_is_stopped_in_time(library: str) -> None:
    outcome = overfill(library, at_once=False)
    assert outcome.cause is Cause.MEMORY, outcome.message
    assert 0.9 * BUDGET < outcome.peak_memory < 1.1 * BUDGET
    assert f"(budget: {BUDGET / 1e6:,.0f} MB)" in outcome.message


@pytest.mark.parametrize("library", LIBRARIES)
def test_one_impossible_request_counts_as_memory(library: str) -> None:
    outcome = overfill(library, at_once=True)
    assert outcome.cause is Cause.MEMORY, outcome.message
    assert outcome.error_type.endswith(ERROR_TYPES[library])  # some versions of numpy raise _ArrayMemoryError


@pytest.mark.parametrize(("used", "reserved"), [(0.9, 0.0), (0.5, 3.0)])
def test_fast_growth_below_the_budget_is_left_alone(used: float, reserved: float) -> None:
    arguments = {"bytes": int(used * BUDGET), "reserved": int(reserved * BUDGET)}
    local = LocalExecutor(4)
    outcomes = run_all(local, [memory_attempt("fill", **arguments) for _ in range(12)])
    local.close()
    assert [outcome.message for outcome in outcomes] == [""] * 12


@pytest.mark.parametrize(("budget", "cause"), [(64 << 20, Cause.MEMORY), (128 << 20, Cause.DONE)])
def test_only_small_budgets_limit_unused_reservations(budget: int, cause: Cause) -> None:
    (outcome,) = run_all(shared_executor(1), [memory_attempt("fill", budget, bytes=16 << 20, reserved=200 << 20)])
    assert outcome.cause is cause


def test_children_die_with_their_watcher(tmp_path: Path) -> None:
    executor, others = LocalExecutor(1), set(running_watchers())
    try:
        executor.submit(attempt("engine_tasks:write_number", tmp_path, number=1, fault="sleep"))
        watchers: list[psutil.Process] = []
        assert wait_until(lambda: watchers.extend(set(running_watchers()) - others) or watchers, DEADLINE_SECONDS)
        kill(watchers)
        assert executor.wait(DEADLINE_SECONDS)[0].cause is Cause.INFRASTRUCTURE
        cause = Cause.INFRASTRUCTURE
        for _ in range(20):  # as often as a driver retries: the dying server may be asked once more
            if cause is Cause.INFRASTRUCTURE:
                cause = overfill("numpy", at_once=False, executor=executor).cause
        assert cause is Cause.MEMORY
    finally:
        executor.close()


def running_watchers() -> list[psutil.Process]:
    """Return the watcher processes below this process."""
    name = memory_watcher.PROCESS_NAME.decode()
    children = psutil.Process().children(recursive=True)
    return [process for process in children if not ended(process) and process.name() == name]


def test_entry_of_a_long_running_child_is_not_given_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is a ring, which thousands of short tasks go around while a long one runs."""
    monkeypatch.setattr(memory_watcher, "ENTRIES", 3)
    watcher = object.__new__(memory_watcher.MemoryWatcher)  # without the watcher process
    watcher._table, watcher._next, watcher.descriptor = memory_watcher._Table(), 0, os.open(os.devnull, os.O_WRONLY)

    def add(budget: int) -> int:
        entry = watcher.reserve()
        watcher.add(entry, os.getpid(), budget)
        return entry

    long = add(1 << 40)
    for _ in range(7):
        watcher.remove(add(1))
    assert watcher._table.child(long).budget == 1 << 40
    add(1)
    add(1)
    with pytest.raises(RuntimeError, match="has 3 children; no more can be watched"):
        watcher.reserve()
    os.close(watcher.descriptor)
