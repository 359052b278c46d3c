"""Faults that befall the real tasks of a real run: a preload for every phase, and a command that runs a recipe with it.

    python -m tests.support.faults.chaos_faults RECIPE ROOT WORKERS [RAY_ADDRESS]

The folder `$DATAKIT_CHAOS` holds tickets, `<number>-<fault>-<before|after>`. A child that begins a task now and then
takes one, and suffers it once, before the task or after it: its files are there then, and its result is lost. No task
suffers two, since the engine gives up one that crashes twice.
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
HANG_SECONDS = 6.0  # a healthy task of the small recipe moves more often, also where the machine is busy
SHARE = 0.25  # of the attempts that look for a ticket


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
    """Lay the faults out, in the fork server: its children run their tasks through `_suffering`."""
    from datakit.engine.worker import child

    child.resolve = _suffering  # pyright: ignore[reportPrivateImportUsage]


def _suffering(name: str) -> Callable[..., TaskResult]:
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
    """(fault, when) that this attempt suffers; ("", "") mostly."""
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
    """The same plan, with the preload in every phase."""
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
    from datakit.pipeline import running

    real = running.run_step
    running.run_step = lambda step, plan, *others: real(step, faulty(plan), *others)
    recipe, root, workers, *ray = sys.argv[1:]
    more = ["--ray", *ray] if ray else []
    return command(["run", recipe, "--root", root, "--workers", workers, *more])


if __name__ == "__main__":
    sys.exit(
        importlib.import_module("tests.support.faults.chaos_faults").main()
    )  # children find its functions by this name
