"""Attempts of a phase are ordered by urgency and size."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from datakit.engine.executor import Attempt
from datakit.engine.scheduler.attempt_queue import AttemptQueue
from datakit.engine.task import Task


def task(name: str, size: int = 1) -> Task:
    return Task(name, "module:function", {}, size)


def retry(name: str, exclusive: bool = False) -> Attempt:
    return replace(Attempt(task(name), "test", "/nowhere", 2, 1, 1), exclusive=exclusive)


def order(queue: AttemptQueue, now: float) -> list[str]:
    """Take attempts until none is ready; return their keys."""
    names: list[str] = []
    while (taken := queue.take(now)) is not None:
        names.append(taken.key if isinstance(taken, Task) else taken.task.key)
    return names


@given(st.lists(st.integers(0, 5)))
def test_biggest_input_goes_first(sizes: list[int]) -> None:
    tasks = [task(str(number), size) for number, size in enumerate(sizes)]
    wanted = [one.key for one in sorted(tasks, key=lambda one: (-one.input_bytes, int(one.key)))]
    assert order(AttemptQueue(tasks), 0.0) == wanted
    some, rest = AttemptQueue(tasks), len(sizes) // 2
    assert [one.key for one in some.take_new(rest)] + order(some, 0.0) == wanted


def test_urgent_retries_go_first_and_exclusive_ones_last() -> None:
    queue = AttemptQueue([task("small"), task("big", 9)])
    queue.put_back(retry("exclusive", exclusive=True))
    queue.put_back(retry("later"), ready=100.0)
    queue.put_back(retry("first"))
    queue.put_back(retry("second"))
    assert len(queue) == 6
    assert order(queue, 99.0) == ["first", "second", "big", "small"]
    assert queue.ready_in(99.0) == 1.0
    assert order(queue, 100.0) == ["later", "exclusive"]
    assert not queue
