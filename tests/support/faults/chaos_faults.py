"""Injects faults into the tasks of a real run: a preload for every phase, and a command that runs a recipe with it.

    python -m tests.support.faults.chaos_faults RECIPE ROOT WORKERS [RAY_ADDRESS]

The folder `$DATAKIT_CHAOS` holds tickets, `<number>-<fault>-<before|after>`. A child that starts a task sometimes takes
one and fails once, before the task or after it: then its files exist, but its result is lost. No task fails twice: the
engine gives up a task that crashes twice.
"""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import xxhash

from datakit.engine.task import Phase, Plan, Preload, TaskResult, encode, resolve

FOLDER = "DATAKIT_CHAOS"
HANG_SECONDS = 15.0  # healthy tasks of the small recipe report more often, even on a busy machine
SHARE = 0.25  # of attempts take a ticket


def _bomb() -> None:
    pieces = []
    while True:
        pieces.append(bytearray(b"x") * (16 << 20))


def _raise() -> None:
    raise ValueError("chaos")


FAULTS: dict[str, Callable[[], object]] = {
    "memory": _bomb,
    "hang": lambda: time.sleep(600),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda: os._exit(0),
    "raise": _raise,
}


def install() -> None:
    """Install the faults in the fork server, whose children then run tasks through `_with_fault`."""
    from datakit.engine.worker import child

    child.resolve = _with_fault  # pyright: ignore[reportPrivateImportUsage]


def _with_fault(name: str) -> Callable[..., TaskResult]:
    function = resolve(name)

    def run(arguments: dict[str, Any], shared: dict[str, Any], context: Any) -> TaskResult:
        fault, when = _ticket(name, arguments, context.step_directory)
        if when == "before":
            FAULTS[fault]()
        result = function(arguments, shared, context)
        if when == "after":
            FAULTS[fault]()
        return result

    return run


def _ticket(*task: Any) -> tuple[str, str]:
    """Return (fault, when) for this attempt; usually ("", "")."""
    folder = Path(os.environ[FOLDER])
    tickets = [path for path in folder.iterdir() if path.name[0].isdigit()]
    dice = random.SystemRandom()
    if not tickets or dice.random() > SHARE:
        return "", ""
    ticket = dice.choice(tickets)
    try:
        (folder / f"hit-{xxhash.xxh3_64_hexdigest(encode(task))}").touch(exist_ok=False)
        ticket.rename(folder / f"taken-{ticket.name}")
    except (FileExistsError, FileNotFoundError):
        return "", ""
    _, fault, when = ticket.name.split("-")
    return fault, when


def faulty(plan: Plan) -> Plan:
    """Add the preload to every phase of a plan."""
    results: Sequence[TaskResult] | None = None
    try:
        while True:
            phase: Phase = next(plan) if results is None else plan.send(results)
            preloads = (*phase.preloads, Preload(__name__, f"{__name__}:install"))
            results = yield replace(phase, preloads=preloads, hang_seconds=HANG_SECONDS)
    except StopIteration as stop:
        return stop.value


def main() -> int:
    """Run the recipe as `datakit run` would, with faulty plans."""
    from datakit.cli.app import main as command
    from datakit.pipeline.schedule import graph_run

    real = graph_run.open_step
    graph_run.open_step = lambda step, plan, *others: real(step, faulty(plan), *others)
    recipe, root, workers, *ray = sys.argv[1:]
    more = ["--ray", *ray] if ray else []
    return command(["run", recipe, "--root", root, "--workers", workers, *more])


if __name__ == "__main__":
    sys.exit(
        importlib.import_module("tests.support.faults.chaos_faults").main()
    )  # children find its functions by this name
