"""Starts a command of datakit for a ferry, waits for it, and stops it if the ferry is stopped.

Each command runs in a process of its own, as users run it, so its CPU time and peak memory can be measured exactly
(`measured.py`), and a crash of the command does not end the ferry. Its output goes to files. The URL of the webhook is
not passed on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from datakit.engine import interpreter
from datakit.errors import TaskError
from datakit.ferries import measured
from datakit.ferries.alert import WEBHOOK_VARIABLE

STOP_SECONDS = 60.0  # how long a command may take to end after SIGTERM
PAUSE = 0.05
PROGRAM = "import sys; from datakit.cli import main; sys.exit(main())"


class Usage(msgspec.Struct, frozen=True):
    """The exit code (`code`) and the cost of a command. left_behind: 1 if it left a process that did not end."""

    code: int
    wall_seconds: float
    cpu_seconds: float
    peak_rss: int
    left_behind: int


def run_datakit(words: list[str], stem: Path, stop: Callable[[], bool] = lambda: False) -> Usage:
    """Run `datakit WORDS`; write its output to `<stem>.out` and its messages to `<stem>.log`. As soon as `stop` returns
    True, send SIGTERM to the command once.
    """
    return run_program(interpreter.command(PROGRAM, *words), stem, stop)


def run_program(command: list[str], stem: Path, stop: Callable[[], bool] = lambda: False) -> Usage:
    """Run a command, as `run_datakit` does."""
    report = stem.with_suffix(".usage.json")
    whole = [sys.executable, "-I", measured.__file__, str(report), *command]
    environment = {name: value for name, value in interpreter.environment().items() if name != WEBHOOK_VARIABLE}
    with open(stem.with_suffix(".out"), "wb") as out, open(stem.with_suffix(".log"), "wb") as log:
        process = subprocess.Popen(
            whole, stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=environment, process_group=0
        )
        try:
            _wait(process, stop)
        finally:
            _end(process)
    try:
        return msgspec.json.decode(report.read_bytes(), type=Usage)
    except FileNotFoundError as error:
        raise TaskError(f"{measured.__file__} ended with code {process.returncode} without a report; see {log.name}") \
            from error  # fmt: skip


def _wait(process: subprocess.Popen[bytes], stop: Callable[[], bool]) -> None:
    sent = False
    while process.poll() is None:
        if not sent and stop():
            sent = True
            process.send_signal(signal.SIGTERM)
        time.sleep(PAUSE)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that is still running. Send it SIGTERM, which it passes on to its command; if it does not end, kill
    it.
    """
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its command, in a group of its own, was sent SIGTERM before
        process.wait()
