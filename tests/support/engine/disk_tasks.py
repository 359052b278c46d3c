"""Task functions and a plan that write as much as they are told to, to no disk."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from datakit.engine.disk_limits import DiskLimits
from datakit.engine.task import Output, Phase, Plan, Step, Task, TaskContext, TaskResult

PIECE = bytes(1 << 16)


def write_away(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write `bytes` bytes to the null device, or endlessly without a number, while holding a record of `file`, if one
    is named. Then, if `gate` is named, wait until that file exists.
    """
    left = arguments.get("bytes")
    if arguments.get("file"):
        context.hold(arguments["file"], 7, 1)
    with open(os.devnull, "wb", buffering=0) as sink:
        while left is None or left:
            written = sink.write(PIECE if left is None else PIECE[:left])
            left = None if left is None else left - written
    while "gate" in arguments and not Path(arguments["gate"]).exists():
        time.sleep(0.02)
    return TaskResult(counters={"written": 1})


def task(key: str, input_bytes: int = 0, **arguments: Any) -> Task:
    """A task of `write_away`."""
    return Task(key, f"{__name__}:write_away", arguments, input_bytes)


def writers(*tasks: Task, **options: Any) -> Plan:
    """A plan of one phase."""
    yield Phase("write", tasks, **options)
    return Output([], pa.schema([]))


def writing_step(directory: Path | str, limits: DiskLimits) -> Step:
    """A step for `writers`."""
    return Step("writers", "test", str(directory), "e" * 32, {}, limits=limits)
