"""Preloads that harm the process that runs them."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

from datakit.engine.task import Preload


def preload(function: str, *arguments: str) -> tuple[Preload, ...]:
    """Return the preloads that call a function of this module."""
    return (Preload(__name__, f"{__name__}:{function}", arguments),)


def leave() -> None:
    """End the process without a word."""
    os._exit(3)


def die() -> None:
    """Die of a signal."""
    os.kill(os.getpid(), signal.SIGKILL)


def start_thread() -> None:
    """Leave a thread behind, which the next fork would lose."""
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def poison() -> None:
    """Break a library, as far as this process is concerned."""
    sys.modules["pyarrow.compute"] = None  # type: ignore[assignment]


def use_compute() -> None:
    """Fail in a process that was poisoned."""
    importlib.import_module("pyarrow.compute")


def record_variable(name: str, file: str) -> None:
    """Write what the process sees of an environment variable."""
    with open(file, "w") as output:
        output.write(os.environ.get(name, "not set"))


def hang(file: str) -> None:
    """Announce this process, and never return."""
    record_variable("", file)
    time.sleep(600)


def leave_with_a_message(file: str) -> None:
    """Report a mistake on standard error as C libraries do, with a number that changes, and end the process."""
    with open(file, "a") as starts:
        starts.write("x")
    os.write(2, f"libexample.so.3: cannot open shared object file [{os.getpid()}]\nhint: ".encode())
    os.write(2, f"password={os.environ.get('CANARY_PASSWORD')}\n".encode())
    os._exit(127)


def crash(file: str) -> None:
    """Die of a segmentation fault."""
    with open(file, "a") as starts:
        starts.write("x")
    os.kill(os.getpid(), signal.SIGSEGV)


def run_out_of_memory(file: str) -> None:
    """End as a program whose allocation failed; the third time, succeed."""
    with open(file, "a") as starts:
        starts.write("x")
    if os.path.getsize(file) < 3:
        os.write(2, b"memory allocation of 64 bytes failed\n")
        os.abort()


def be_killed(file: str) -> None:
    """Die of a signal from outside; the third time, succeed."""
    with open(file, "a") as starts:
        starts.write("x")
    if os.path.getsize(file) < 3:
        os.kill(os.getpid(), signal.SIGTERM)


def differ(file: str) -> None:
    """End in another way each time; the third time, succeed."""
    with open(file, "a") as starts:
        starts.write("x")
    if os.path.getsize(file) < 3:
        os._exit(os.path.getsize(file))


def speak() -> None:
    """Write to standard output and standard error."""
    os.write(1, b"to standard output\n")
    os.write(2, b"to standard error\n")


def meet(own: str, other: str) -> None:
    """Start only if another server starts at the same time: create a file, and wait for the other server's file."""
    Path(own).touch()
    deadline = time.monotonic() + 120
    while not Path(other).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(other)
        time.sleep(0.01)
