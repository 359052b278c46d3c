"""Task functions for the tests on a Ray cluster."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psutil

from datakit.engine.task import Output, OutputFile, Phase, Plan, Task, TaskContext, TaskResult
from datakit.errors import TaskError
from datakit.storage import atomic, urls
from datakit.storage.manifest import Partition
from tests.support.engine.engine_tasks import SCHEMA


def write_when_released(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write a file once the file `gate` exists, if one is named; the result's details name the node's raylet."""
    number, gate = arguments["number"], arguments["gate"]
    if gate:
        Path(f"{gate}.{number:03d}.started").touch()
    while gate and not Path(gate).exists():
        time.sleep(0.02)
    path = f"number-{number:03d}.txt"
    committed = atomic.commit_bytes(b"here", urls.join(context.step_directory, path))
    raylet = next(parent.pid for parent in psutil.Process().parents() if parent.name() == "raylet")
    return TaskResult((OutputFile(path, committed.bytes, committed.xxh3, 1),), {"numbers": 1}, {"raylet": raylet})


def started(gate: Path) -> int:
    """Number of tasks that have reached the gate."""
    return len(list(gate.parent.glob(f"{gate.name}.*.started")))


def gated_numbers(count: int, gate: Path | str = "") -> Plan:
    """A plan of `write_when_released`; its output's details name the raylets."""
    function = f"{__name__}:write_when_released"
    tasks = tuple(Task(f"{number:03d}", function, {"number": number, "gate": str(gate)}) for number in range(count))
    results = yield Phase("where", tasks)
    partitions = [Partition(o.path, "test", o.rows, o.bytes, o.xxh3) for result in results for o in result.outputs]
    return Output(partitions, SCHEMA, details={"raylets": sorted({result.details["raylet"] for result in results})})


def announce_and_sleep(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write its own pid and its parent's to a file, then sleep until it is killed."""
    path = Path(arguments["file"])
    path.with_suffix(".part").write_text(f"{os.getpid()} {os.getppid()}")
    path.with_suffix(".part").rename(path)
    time.sleep(600)
    return TaskResult()


def variables(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Return some environment variables of the child."""
    return TaskResult(details={name: os.environ.get(name) for name in arguments["names"]})


def fail_with(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Raise an error that quotes the value of an environment variable, as clients of stores do."""
    raise TaskError(f"denied: https://host/a?token={os.environ[arguments['variable']]}, {os.environ}")
