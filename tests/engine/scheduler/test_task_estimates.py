"""Estimates from finished tasks stay within bounds and affect first attempts only."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.engine.executor import Attempt, Cause, Outcome
from datakit.engine.scheduler.retry_policy import TaskHistory, judge, next_attempt
from datakit.engine.scheduler.task_estimates import LEARN_FROM, TaskEstimates
from datakit.engine.task import Phase, Task

TASK = Task("t", "m:f", {}, input_bytes=100 << 20)
PHASE = Phase("p", (TASK,), memory_bytes=256 << 20, memory_per_input_byte=2.0)
DECLARED = 456 << 20


def done(peak: int = 0, seconds: float = 1.0) -> Outcome:
    return Outcome("p", "t", 1, Cause.DONE, peak_memory=peak, work_seconds=seconds)


def learned(peaks: list[int]) -> TaskEstimates:
    estimates = TaskEstimates(PHASE)
    for peak in peaks:
        estimates.learn(TASK, done(peak))
    return estimates


def test_few_tasks_do_not_change_the_budget() -> None:
    assert learned([1 << 20] * (LEARN_FROM - 1)).first(TASK) == DECLARED


@pytest.mark.parametrize(("used", "share"), [(0.001, 0.25), (0.4, 0.6), (1.0, 1.5), (9.0, 4.0)])
def test_first_budget_is_usage_plus_half_within_bounds(used: float, share: float) -> None:
    assert learned([int(used * DECLARED)] * 20).first(TASK) == pytest.approx(share * DECLARED, rel=0.01)


def test_one_outlier_does_not_raise_the_budget() -> None:
    usual = int(0.2 * DECLARED)
    assert learned([usual] * 30 + [3 * DECLARED] + [usual] * 19).first(TASK) < 0.31 * DECLARED


@given(st.lists(st.integers(0, 1 << 40), max_size=200))
def test_budget_stays_within_bounds(peaks: list[int]) -> None:
    assert 0.24 * DECLARED < learned(peaks).first(TASK) < 4.01 * DECLARED


def test_retry_starts_from_the_declared_memory() -> None:
    estimates, history = learned([0] * 20), TaskHistory()
    first = Attempt(TASK, "p", "/nowhere", 1, 1, estimates.first(TASK))
    judge(history, Outcome("p", "t", 1, Cause.MEMORY))
    second = next_attempt(first, history, estimates.declared(TASK))
    judge(history, Outcome("p", "t", 2, Cause.MEMORY))
    third = next_attempt(second, history, estimates.declared(TASK))
    shares = [attempt.memory_bytes / DECLARED for attempt in (first, second, third)]
    assert shares == [pytest.approx(0.25, rel=0.01), 2, 4]
    assert (second.exclusive, third.exclusive) == (False, True)


def test_only_tiny_tasks_are_batched() -> None:
    estimates = TaskEstimates(PHASE)
    for _ in range(8):
        estimates.learn(TASK, done(seconds=0.01))
    assert estimates.batch(100_000, 4) == 50
    assert estimates.batch(160, 4) == 10
    assert estimates.batch(3, 4) == 1
    slow = TaskEstimates(PHASE)
    for _ in range(8):
        slow.learn(TASK, done(seconds=0.06))
    assert slow.batch(100_000, 4) == 1


def test_budget_follows_what_a_task_holds() -> None:
    task = replace(TASK, input_bytes=10 << 30, held_bytes=1 << 20)
    estimates = TaskEstimates(Phase("p", (task,), memory_bytes=1000, memory_per_input_byte=2.0))
    assert estimates.declared(task) == 1000 + (2 << 20)
