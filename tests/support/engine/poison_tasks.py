"""Task functions that process records, some of which kill the process. Also used by a benchmark."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from datakit.engine.task import Output, OutputFile, Phase, Plan, Preload, Step, Task, TaskContext, TaskResult, Tolerance
from datakit.storage import atomic, removal, urls
from datakit.storage.manifest import Partition
from tests.support.engine.engine_tasks import SCHEMA

FILE = "records.txt"
PRELOADS = (Preload("tests.support.engine.poison_tasks"),)


def _bomb() -> None:
    pieces = []
    while True:
        pieces.append(np.ones(8 << 20, np.uint8))


def _loop() -> None:
    while True:
        pass


POISONS: dict[str, Callable[[], object]] = {
    "bomb": _bomb,
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda: os._exit(3),
    "loop": _loop,
    "raise": lambda: {}["a secret word"],
}


def digest_records(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Hash records [first, stop) of an imaginary file, `batch` at a time, and write the sum of the hashes."""
    poison, seconds, batch = shared["poison"], shared["seconds"], shared["batch"]
    total, left_out, first, stop = 0, [], arguments["first"], arguments["stop"]

    def work(record: int) -> int:
        fault = poison.get(str(record))
        if fault is not None:
            POISONS[fault]()
        time.sleep(seconds)
        return int.from_bytes(hashlib.blake2b(str(record).encode(), digest_size=4).digest())

    for start in range(first, stop, batch):
        positions = np.arange(start, min(start + batch, stop))
        kept, gone = context.records(FILE, positions, lambda row, positions=positions: work(int(positions[row])))
        left_out += gone
        total += sum(work(record) for record in (positions if kept is None else positions[kept]).tolist())
        context.report(start - first, 0)
    context.release()
    path = f"sum-{first:06d}.txt"
    committed = atomic.commit_bytes(str(total).encode(), urls.join(context.step_directory, path))
    outputs = (OutputFile(path, committed.bytes, committed.xxh3, stop - first - len(left_out)),)
    return TaskResult(outputs, {"quarantined": len(left_out)}, {}, tuple(left_out), records=stop - first)


def write_parts(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write a file for each name; one of them kills the process until the step has a file `mended`.

    If the step has a file `external-kill`, the first attempt without the bad name is killed from outside.
    """
    outputs = []
    mended = urls.exists(urls.join(context.step_directory, "mended"))
    external_kill = urls.join(context.step_directory, "external-kill")
    if urls.exists(external_kill) and shared["poison"] not in arguments["names"]:
        removal.remove(external_kill)
        os.kill(os.getpid(), signal.SIGKILL)
    for name in arguments["names"]:
        if name == shared["poison"] and not mended:
            os.kill(os.getpid(), signal.SIGSEGV)
        committed = atomic.commit_bytes(name.encode(), urls.join(context.step_directory, name))
        outputs.append(OutputFile(name, committed.bytes, committed.xxh3, 1))
    return TaskResult(tuple(outputs))


def read_one_by_one(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Hold each record before reading it, like row groups of one; reading `poison` kills even if it is skipped."""
    left_out = []
    for row in range(arguments["first"], arguments["first"] + 3):
        context.hold(FILE, row, 1)
        if row == shared["poison"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        left_out += context.records(FILE, [row], lambda row: None)[1]
        context.release()
    return TaskResult(quarantined=tuple(left_out), records=3)


def copy(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Copy a file of the step; with `until`, raise until that file exists."""
    if arguments["until"] and not urls.exists(urls.join(context.step_directory, arguments["until"])):
        raise ValueError("not yet")
    data = urls.read_bytes(urls.join(context.step_directory, arguments["source"]))
    committed = atomic.commit_bytes(data, urls.join(context.step_directory, arguments["target"]))
    return TaskResult((OutputFile(arguments["target"], committed.bytes, committed.xxh3, 1),))


def nap(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Take some milliseconds and return one small fact; die or raise on request."""
    if arguments.get("fault"):
        POISONS[arguments["fault"]]()
    time.sleep(shared["seconds"])
    return TaskResult(details={"pid": os.getpid(), "number": arguments["number"]}, records=1)


def poison_step(directory: str) -> Step:
    """Make a step for these plans."""
    return Step("poison", "test", directory, "f" * 32, {})


def digests(
    tasks: int,
    poison: Mapping[int, str],
    tolerance: Tolerance | None = None,
    *,
    records: int = 10,
    batch: int = 5,
    seconds: float = 0.0,
    memory_bytes: int = 64 << 20,
    hang_seconds: float | None = None,
) -> Plan:
    """Plan `tasks` tasks of `records` records each; `poison`: record -> how it kills."""
    listed = tuple(
        Task(f"{n:05d}", f"{__name__}:digest_records", {"first": n * records, "stop": (n + 1) * records})
        for n in range(tasks)
    )
    shared = {"poison": {str(record): fault for record, fault in poison.items()}, "seconds": seconds, "batch": batch}
    results = yield Phase(
        "digest",
        listed,
        shared,
        PRELOADS,
        memory_bytes=memory_bytes,
        hang_seconds=hang_seconds or (1.0 if "loop" in poison.values() else 60.0),  # a busy machine may stall a bomb
        tolerance=tolerance or Tolerance(),
    )
    partitions = [Partition(o.path, "test", o.rows, o.bytes, o.xxh3) for result in results for o in result.outputs]
    return Output(partitions, SCHEMA)


def parts(names: list[str], poison: str) -> Plan:
    """Plan one task that writes all names."""
    task = Task("all", f"{__name__}:write_parts", {"names": names}, bisect_argument="names")
    results = yield Phase("parts", (task,), {"poison": poison})
    return Output([Partition(o.path, "test", 1, o.bytes, o.xxh3) for r in results for o in r.outputs], SCHEMA)


def readings(tasks: int, poison: int, tolerance: Tolerance) -> Plan:
    """Plan tasks of three records each, one of which kills its reader."""
    listed = tuple(Task(f"{n:02d}", f"{__name__}:read_one_by_one", {"first": 3 * n}) for n in range(tasks))
    yield Phase("read", listed, {"poison": poison}, PRELOADS, tolerance=tolerance)
    return Output([], SCHEMA)


def copies() -> Plan:
    """`in` to `exchange/middle`, and that to `one` and `two`; `two` waits for a file `mended`."""

    def task(source: str, target: str, until: str = "") -> Task:
        return Task(target, f"{__name__}:copy", {"source": source, "target": target, "until": until})

    yield Phase("first", (task("in", "exchange/middle"),))
    results = yield Phase("second", (task("exchange/middle", "one"), task("exchange/middle", "two", "mended")))
    return Output([Partition(o.path, "test", 1, o.bytes, o.xxh3) for r in results for o in r.outputs], SCHEMA)


def name_itself(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write one file with the task's number, the smallest task with an output."""
    path = f"{arguments['number'] // 1000:03d}/{arguments['number']:06d}.txt"
    committed = atomic.commit_bytes(str(arguments["number"]).encode(), urls.join(context.step_directory, path))
    return TaskResult((OutputFile(path, committed.bytes, committed.xxh3, 1),), {"files": 1}, records=1)


def files(tasks: int) -> Plan:
    """Plan many tiny tasks that write a file each."""
    listed = tuple(Task(f"{n:06d}", f"{__name__}:name_itself", {"number": n}, 1) for n in range(tasks))
    results = yield Phase("files", listed, preloads=PRELOADS)
    partitions = [Partition(o.path, "test", o.rows, o.bytes, o.xxh3) for result in results for o in result.outputs]
    return Output(partitions, SCHEMA)


def wait_for_files(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Ends once the step has `count` files of `name_itself`; reports nothing meanwhile."""
    while len(list(Path(context.step_directory).glob("*/*.txt"))) < arguments["count"]:
        time.sleep(0.01)
    return TaskResult()


def waits(tasks: int, hang_seconds: float) -> Plan:
    """A task that waits for all others without a sign of life, and goes first; and the others."""
    listed = [Task(f"{n:06d}", f"{__name__}:name_itself", {"number": n}, 1) for n in range(tasks)]
    waiting = Task("waiting", f"{__name__}:wait_for_files", {"count": tasks}, input_bytes=2)
    yield Phase("wait", (waiting, *listed), preloads=PRELOADS, hang_seconds=hang_seconds, batches=False)
    return Output([], SCHEMA, {"waited": 1})


def naps(tasks: int, seconds: float, faults: Mapping[int, str] | None = None, tiny: bool = True) -> Plan:
    """Plan many tiny tasks, with `tiny` false one per child; the output's details count the children."""
    listed = tuple(
        Task(f"{n:06d}", f"{__name__}:nap", {"number": n, "fault": (faults or {}).get(n)}) for n in range(tasks)
    )
    results = yield Phase("nap", listed, {"seconds": seconds}, PRELOADS, batches=tiny)
    assert [result.details["number"] for result in results] == list(range(tasks))
    return Output([], SCHEMA, details={"children": len({result.details["pid"] for result in results})})
