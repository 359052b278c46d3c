"""Preloads that harm the process that runs them."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time

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
