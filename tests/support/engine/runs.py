"""Runs steps and attempts of test tasks, and reads what they left."""

from __future__ import annotations

import atexit
import contextlib
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from datakit.engine.executor import Attempt, Outcome
from datakit.engine.ledger.ledger import AttemptLine, read_ledger
from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler.driver import run_step
from datakit.engine.task import Plan, Preload, Step, Task
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.storage import locks
from datakit.storage.manifest import Manifest
from tests.support.engine import engine_tasks, poison_tasks

DEADLINE_SECONDS = 120.0


@cache
def shared_executor(workers: int = 2) -> LocalExecutor:
    """Return an executor that all tests of this process use, so that its fork servers start once."""
    executor = LocalExecutor(workers)
    atexit.register(executor.close)
    return executor


@contextlib.contextmanager
def fresh_executor(workers: int = 2, memory_bytes: int | None = None) -> Iterator[LocalExecutor]:
    """Provide an executor with its own fork servers."""
    executor = LocalExecutor(workers, memory_bytes)
    try:
        yield executor
    finally:
        executor.close()


def run_step_of(step: Step, plan: Plan, workers: int = 2, observer: Observer | None = None) -> Manifest:
    """Run a step on the shared executor."""
    return run_step(step, plan, lambda: shared_executor(workers), observer or Observer())


def run(directory: Path, plan: Plan, workers: int = 2, memory_bytes: int | None = None) -> Manifest:
    """Run a plan of poison_tasks in `directory`."""
    step = poison_tasks.poison_step(str(directory))
    if memory_bytes is None:
        return run_step_of(step, plan, workers)
    with fresh_executor(workers, memory_bytes) as executor:
        return run_step(step, plan, lambda: executor, Observer())


def run_numbers(
    directory: Path, count: int = 6, workers: int = 2, observer: Observer | None = None, **faults: object
) -> Manifest:
    """Run the step of numbers in `directory`."""
    plan = engine_tasks.numbers(count, **faults)  # pyright: ignore[reportArgumentType]
    return run_step_of(engine_tasks.number_step(str(directory)), plan, workers, observer)


def run_task(
    function: str, memory_bytes: int = 1 << 30, preloads: tuple[Preload, ...] = (), **arguments: object
) -> Outcome:
    """Return the outcome of one attempt at a function of engine_tasks."""
    executor = shared_executor(1)
    task = Task("only", f"tests.support.engine.engine_tasks:{function}", dict(arguments))
    executor.submit(Attempt(task, "test", "/nowhere", 1, 1, memory_bytes, preloads))
    (outcome,) = executor.wait(DEADLINE_SECONDS)
    return outcome


def attempts(directory: Path | str) -> list[AttemptLine]:
    """Read all attempts in a step's ledger."""
    return [line for line in read_ledger(str(directory)) if isinstance(line, AttemptLine)]


def outputs(directory: Path) -> dict[str, bytes]:
    """Read every file of a step but its ledger, by relative path."""
    files = (path for path in directory.rglob("*") if path.is_file() and "ledger" not in path.parts)
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def wait_until(condition: Callable[[], bool], seconds: float = DEADLINE_SECONDS) -> None:
    """Wait until a condition holds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def locked_files(directory: Path) -> list[Path]:
    """Return the locked files below `directory`. Tests use it instead of the number of locks of the process, which
    changes while threads that an earlier test has abandoned come to their ends.
    """
    return sorted(path for path in directory.rglob("*") if locks.is_locked(path))
