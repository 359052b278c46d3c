"""Task functions for the tests on a Ray cluster."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psutil

from datakit.engine.task import Output, OutputFile, Phase, Plan, Task, TaskContext, TaskResult
from datakit.storage import atomic, urls
from datakit.storage.manifest import Partition
from tests.support.engine.engine_tasks import SCHEMA


def where(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Which node (raylet) it ran on, after a pause that lets every node get one; a file that says nothing of that."""
    time.sleep(arguments["seconds"])
    path = f"number-{arguments['number']:03d}.txt"
    committed = atomic.commit_bytes(b"here", urls.join(context.step_directory, path))
    raylet = next(parent.pid for parent in psutil.Process().parents() if parent.name() == "raylet")
    output = OutputFile(path, committed.bytes, committed.xxh3, 1)
    return TaskResult((output,), {"numbers": 1}, {"raylet": raylet})


def places(count: int, seconds: float) -> Plan:
    """A plan of `where`; its output's details name the raylets."""
    tasks = (
        Task(f"{number:03d}", "tests.support.engine.ray_tasks:where", {"number": number, "seconds": seconds})
        for number in range(count)
    )
    results = yield Phase("where", tuple(tasks))
    partitions = [Partition(o.path, "test", o.rows, o.bytes, o.xxh3) for result in results for o in result.outputs]
    return Output(partitions, SCHEMA, details={"raylets": sorted({result.details["raylet"] for result in results})})


def announce_and_sleep(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Leaves its own pid and its parent's in a file, then sleeps until it is killed."""
    path = Path(arguments["file"])
    path.with_suffix(".part").write_text(f"{os.getpid()} {os.getppid()}")
    path.with_suffix(".part").rename(path)
    time.sleep(600)
    return TaskResult()


def variables(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Some environment variables, as a child finds them."""
    return TaskResult(details={name: os.environ.get(name) for name in arguments["names"]})
