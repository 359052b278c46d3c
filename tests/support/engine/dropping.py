"""Defines a step of four phases, each of which reads and then drops the files of the phase before. As a program, this
module runs the step and kills itself at a given moment: `python -m tests.support.engine.dropping DIRECTORY FOLDER
MOMENT [MIDDLE]`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler import drops
from datakit.engine.scheduler.driver import run_step
from datakit.engine.task import Output, OutputFile, Phase, Plan, Step, Task, TaskContext, TaskResult
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.storage import atomic, removal, urls
from datakit.storage.manifest import Partition
from tests.support.engine.engine_tasks import SCHEMA

FOLDERS = ("first", "second", "third", "fourth")
MODULE = "tests.support.engine.dropping"  # __name__ differs when this module runs as a program
GATE = "DATAKIT_TEST_GATE"  # the tasks of the phase GATED wait until the file that this variable names exists
GATED = "DATAKIT_TEST_GATED"


def combine(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the content of the inputs and the task's name; the last phase adds which other exchange folders exist."""
    gate = Path(os.environ.get(GATE, os.devnull))
    if arguments["target"].startswith(f"exchange/{os.environ.get(GATED, 'third')}/") and not gate.exists():
        gate.with_suffix(".waiting").touch()
        while not gate.exists():
            time.sleep(0.02)
    read = [urls.read_bytes(urls.join(context.step_directory, path)).decode() for path in shared["inputs"]]
    text = "".join([*read, f"{arguments['target']}\n"])
    if arguments["target"].startswith("last/"):
        there = {path.name for path in Path(context.step_directory, "exchange").iterdir()}
        text += f"beside {sorted(there - {'shared', FOLDERS[-1]})}\n"
    committed = atomic.commit_bytes(text.encode(), urls.join(context.step_directory, arguments["target"]))
    return TaskResult((OutputFile(arguments["target"], committed.bytes, committed.xxh3, 1),), {"combined": 1})


def plan(tasks: int = 2, middle: str = "third") -> Plan:
    """tasks: the number of tasks of phase `second`, which affects the content and the names of all later files. middle:
    the name of phase `third`.
    """
    before, files = list[str](), list[OutputFile]()
    folders = [middle if folder == "third" else folder for folder in (*FOLDERS, "last")]
    for number, folder in enumerate(folders):
        count = tasks if folder == "second" else 2
        name = "last/{}.txt" if folder == "last" else f"exchange/{folder}/{{}}-of-{tasks}.txt"
        targets = [name.format(index) for index in range(count)]
        work = tuple(Task(str(n), f"{MODULE}:combine", {"target": target}) for n, target in enumerate(targets))
        last_read = tuple(folders[number - 1 : number]) if number else ()
        results = yield Phase(folder, work, {"inputs": before}, drops=last_read, batches=False)
        before = [output.path for result in results for output in result.outputs]
        files = [output for result in results for output in result.outputs]
    return Output([Partition(file.path, "test", file.rows, file.bytes, file.xxh3) for file in files], SCHEMA)


def dropping_step(directory: str) -> Step:
    """Make a step for `plan`."""
    return Step("dropping", "test", directory, "d" * 32, {})


def main(directory: str, folder: str, moment: str, middle: str = "third") -> None:
    """Run the step, and kill this process before, during or after the removal of a folder."""
    remove_tree = removal.remove_tree

    def remove(url: str) -> None:
        if urls.name(url) != folder:
            remove_tree(url)
            return
        if moment == "within":
            removal.remove(urls.join(url, "0-of-2.txt"))
        elif moment == "after":
            remove_tree(url)
        os.kill(os.getpid(), signal.SIGKILL)

    drops.DROP_BYTES, removal.remove_tree = 1, remove
    executor = LocalExecutor(2)
    run_step(dropping_step(directory), plan(middle=middle), lambda: executor, Observer())
    executor.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
