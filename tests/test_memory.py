"""Out of memory is known, not guessed: for each library, whichever way it goes over its budget."""

from __future__ import annotations

import pytest

from datakit.engine.executor import Attempt, Cause, Outcome
from datakit.engine.local import LocalExecutor
from datakit.engine.task import Task
from tests.memory_tasks import LIBRARIES

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
        task = Task("only", "tests.memory_tasks:overfill", {"library": library, "at_once": at_once})
        executor.submit(Attempt(task, "test", "/nowhere", 1, 1, BUDGET))
        return executor.wait(60)[0]
    finally:
        executor.close()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_grows_over_its_budget_is_stopped_in_time(library: str) -> None:
    outcome = overfill(library, at_once=False)
    assert outcome.cause is Cause.MEMORY, outcome.message
    assert 0.9 * BUDGET < outcome.peak_memory < 1.1 * BUDGET
    if outcome.error_type == "OverBudget":  # killed; else it met the wall, and its library says that it cannot go on
        assert f"its budget is {BUDGET >> 20} MiB" in outcome.message


@pytest.mark.parametrize("library", LIBRARIES)
def test_one_request_that_can_never_be_met_is_memory_too(library: str) -> None:
    outcome = overfill(library, at_once=True)
    assert outcome.cause is Cause.MEMORY, outcome.message
    assert outcome.error_type.endswith(KINDS[library])  # numpy's is _ArrayMemoryError, or not
