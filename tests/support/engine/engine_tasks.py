"""Small task functions, and a plan, that misbehave on request."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from datakit.engine.task import Output, OutputFile, Phase, Plan, Preload, Step, Task, TaskContext, TaskResult
from datakit.errors import ColumnError, NotFoundError
from datakit.storage import atomic, urls
from datakit.storage.manifest import Partition

SCHEMA = pa.schema([("value", pa.int64())])


def write_number(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write a small file. Before that, do what `fault` names, unless the marker file exists."""
    if arguments.get("fault") == "refuse own":
        raise ColumnError(f"part-{arguments['number']} of the source has no column 'text'; it has 'body'")
    misbehave(arguments.get("fault"), arguments.get("marker"))
    number = arguments["number"] * shared.get("factor", 1)
    path = f"number-{arguments['number']:03d}.txt"
    committed = atomic.commit_bytes(str(number).encode(), urls.join(context.step_directory, path))
    context.report(1, 1)
    return TaskResult((OutputFile(path, committed.bytes, committed.xxh3, 1),), {"numbers": 1, "sum": number})


def write_some(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write a small file or, as long as the marker file does not exist, leave the task's records for a later run."""
    if arguments["number"] % 2 and not Path(arguments["marker"]).exists():
        return TaskResult(records=10, open=arguments["number"], why_open="the budget is spent; raise it")
    return write_number(arguments, shared, context)


def misbehave(fault: str | None, marker: str | None) -> None:
    """Cause the fault, once per marker file, or always without one."""
    if fault is None:
        return
    if marker is not None:
        if Path(marker).exists():
            return
        Path(marker).touch()
    FAULTS[fault]()


def _eat_memory() -> None:
    pieces = []
    while True:
        pieces.append(bytearray(os.urandom(1 << 20) * 16))


def _raise() -> None:
    raise ValueError("the text of a secret document")


def _refuse() -> None:
    raise ColumnError("part.jsonl has no column 'text'; it has 'body'")


def _miss_a_file() -> None:
    raise NotFoundError("exchange/runs/7.run does not exist")


def _fill_the_disk() -> None:
    with atomic.storage_errors("/dev/full"), open("/dev/full", "wb", buffering=0) as file:
        file.write(b"0")


FAULTS = {
    "full": _fill_the_disk,
    "missing": _miss_a_file,
    "raise": _raise,
    "refuse": _refuse,
    "memory": _eat_memory,
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "cpu limit": lambda: (signal.setitimer(signal.ITIMER_PROF, 0.05), sum(range(1 << 62))),
    "exit": lambda: os._exit(3),
    "nap": lambda: time.sleep(5),
    "sleep": lambda: time.sleep(600),
}


def meet(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Note that this task has started, wait until a task named `other` has started, and write a small file."""
    place = Path(arguments["place"])
    (place / arguments["name"]).touch()
    deadline = time.monotonic() + 120
    while not (place / arguments["other"]).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(arguments["other"])
        time.sleep(0.01)
    return write_number({"number": arguments["number"]}, shared, context)


def look_around(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Report the child's modules after Arrow has converted a Python value, its threads and settings."""
    pa.array([1])
    facts = {
        "modules": sorted(sys.modules),
        "main": getattr(sys.modules["__main__"], "__file__", None),
        "threads": threading.active_count(),
        "tasks": len(os.listdir("/proc/self/task")),
        "pid": os.getpid(),
        "parent": os.getppid(),
        "rayon": os.environ.get("RAYON_NUM_THREADS"),
        "arrow": pa.cpu_count(),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
    }
    return TaskResult(details=facts)


def number_step(directory: str) -> Step:
    """Make a step for `numbers`."""
    return Step("numbers", "test", directory, "f" * 32, {})


def numbers(
    count: int, faults: dict[int, str] | None = None, markers: str | None = None, memory_bytes: int = 1 << 30
) -> Plan:
    """Plan two phases: numbers, then numbers offset by `count`, so that a resume has something to skip."""
    faults = faults or {}
    partitions = []
    for phase, shared in (("first", {}), ("second", {"factor": 2})):
        offset = 0 if phase == "first" else count
        tasks = tuple(
            Task(
                f"number-{offset + index:03d}",
                "tests.support.engine.engine_tasks:write_number",
                {
                    "number": offset + index,
                    "fault": faults.get(offset + index),
                    "marker": markers and f"{markers}/{offset + index}",
                },
            )
            for index in range(count)
        )
        results = yield Phase(phase, tasks, shared=shared, memory_bytes=memory_bytes)
        for result in results:
            output = result.outputs[0]
            partitions.append(Partition(output.path, "test", output.rows, output.bytes, output.xxh3))
    return Output(partitions, SCHEMA)


def one_phase(preloads: tuple[Preload, ...]) -> Plan:
    """Plan two tasks that need these preloads."""
    function = "tests.support.engine.engine_tasks:write_number"
    tasks = tuple(Task(f"number-{number}", function, {"number": number}) for number in range(2))
    results = yield Phase("only", tasks, preloads=preloads)
    outputs = [result.outputs[0] for result in results]
    return Output([Partition(one.path, "test", one.rows, one.bytes, one.xxh3) for one in outputs], SCHEMA)


def failing_preload() -> Any:
    """A preload that fails."""
    raise ColumnError("the tokenizer has no vocabulary")


def meeting(place: Path, name: str, other: str) -> Plan:
    """Plan one task that ends only if a task named `other` runs at the same time."""
    arguments = {"place": str(place), "name": name, "other": other, "number": 0}
    (result,) = yield Phase("meet", (Task(name, f"{__name__}:meet", arguments),), hang_seconds=300)
    (output,) = result.outputs
    return Output([Partition(output.path, "test", output.rows, output.bytes, output.xxh3)], SCHEMA)


BAD_PRELOAD = Preload("tests.support.engine.engine_tasks", "tests.support.engine.engine_tasks:failing_preload")
