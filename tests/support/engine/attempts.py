"""Makes attempts at test tasks and runs them on an executor."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import psutil

from datakit.engine.executor import Attempt, Executor, Outcome
from datakit.engine.task import Task
from tests.support.engine.runs import DEADLINE_SECONDS
from tests.support.faults.cluster import wait_until


def attempt(function: str, directory: Path | str, index: int = 1, **arguments: object) -> Attempt:
    """Return an attempt at `module:name` of tests/support/engine; `index` makes its key unique."""
    task = Task(f"{function}-{index}", f"tests.support.engine.{function}", arguments)
    return Attempt(task, "test", str(directory), 1, 1, 1 << 30)


def run_all(executor: Executor, attempts: list[Attempt]) -> list[Outcome]:
    """Submit attempts and wait for all outcomes, in the order in which they end."""
    for each in attempts:
        executor.submit(each)
    outcomes: list[Outcome] = []
    end = time.monotonic() + DEADLINE_SECONDS
    while len(outcomes) < len(attempts):
        assert time.monotonic() < end, f"only {len(outcomes)} of {len(attempts)} attempts ended"
        outcomes += executor.wait(1.0)
    return outcomes


def sleeping(executor: Executor, directory: Path) -> tuple[psutil.Process, psutil.Process, psutil.Process]:
    """Start an attempt that sleeps; returns its process, its fork server and its Ray worker."""
    file = directory / f"pids-{uuid.uuid4().hex}"
    executor.submit(attempt("ray_tasks:announce_and_sleep", directory, file=str(file)))
    assert wait_until(file.exists, DEADLINE_SECONDS), "the attempt did not start"
    child, server = (psutil.Process(int(pid)) for pid in file.read_text().split())
    return child, server, server.parents()[1]
