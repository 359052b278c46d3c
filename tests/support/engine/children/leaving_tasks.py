"""Task functions that leave something in their process, or use much of something, and return the process's id."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from datakit.engine.task import TaskContext, TaskResult
from datakit.engine.user_modules import loaded
from datakit.engine.worker.child import MOST_RETAINED
from datakit.engine.worker.reuse.process_state import process_state
from datakit.errors import RecipeError

NO_FILES: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
_held: list[object] = []


def leave(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Leave what `what` names; nothing if it is "nothing"."""
    EFFECTS[arguments["what"]]()
    return _result()


def spike(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Use `bytes` of memory for a moment."""
    np.ones(arguments["bytes"], np.uint8)
    return _result()


def compute(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Use `seconds` of CPU time."""
    end = time.process_time() + arguments["seconds"]
    while time.process_time() < end:
        pass
    return _result()


def write(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write `bytes` bytes to a scratch file, and nothing where an earlier task might have written."""
    assert not any(context.scratch.iterdir())
    (context.scratch / "file").write_bytes(bytes(arguments["bytes"]))
    return _result()


def crash_at_record(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Note the process's id in a file, announce a record, print a line, and crash."""
    Path(arguments["file"]).write_text(str(os.getpid()))
    context.report(41, 1000)
    context.hold("records.txt", 41, 1)
    os.kill(os.getpid(), signal.SIGSEGV)
    return _result()


def change_shared(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Return the shared data after changing it."""
    shared["numbers"].append(1)
    return TaskResult(details={"pid": os.getpid(), "numbers": list(shared["numbers"])})


def _result() -> TaskResult:
    return TaskResult(details={"pid": os.getpid()})


def _use_arrow_threads() -> None:
    table = pa.table({"number": pa.array(range(100_000))})
    table.group_by("number", use_threads=True).aggregate([])
    wait_for_idle_threads()


def wait_for_idle_threads() -> None:
    """Wait until the threads of libraries sleep. Those that an import starts, such as OpenBLAS's, may run for a while;
    on a busy machine, they go to sleep late.
    """
    deadline = time.monotonic() + 60
    while process_state()["threads"][1] and time.monotonic() < deadline:
        time.sleep(0.001)


def _wait_for_child() -> None:
    subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)


def _start_native_thread() -> None:
    """Start a thread that Python does not know; it sleeps."""
    library = ctypes.CDLL(None)
    started = ctypes.c_ulong()
    library.pthread_create(ctypes.byref(started), None, ctypes.cast(library.sleep, ctypes.c_void_p), 600)


EFFECTS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "pool": _use_arrow_threads,
    "open files": lambda: _held.append(open(os.devnull)),  # noqa: SIM115
    "environment": lambda: os.environ.update(DATAKIT_TEST="1"),
    "environment of C": lambda: ctypes.CDLL(None).setenv(b"DATAKIT_TEST", b"1", 1),
    "working directory": lambda: os.chdir("/"),
    "umask": lambda: os.umask(0o077 ^ os.umask(0)),
    "limits": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)),
    "timers": lambda: signal.setitimer(signal.ITIMER_REAL, 600),
    "import path": lambda: sys.path.append("/nowhere"),
    "signal handlers": lambda: signal.signal(signal.SIGINT, lambda number, frame: None),
    "caught signals": lambda: signal.signal(signal.SIGUSR2, lambda number, frame: None),
    "ignored signals": lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
    "blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]),
    "threads": lambda: threading.Thread(target=time.sleep, args=(600,), daemon=True).start(),
    "waiting threads": lambda: threading.Thread(target=threading.Event().wait, daemon=True).start(),
    "native threads": _start_native_thread,
    "child processes": lambda: _held.append(subprocess.Popen([sys.executable, "-c", "input()"], **NO_FILES)),
    "ended child processes": _wait_for_child,
    "processors": lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1]),
    "priority": lambda: os.nice(1),
    "user code": lambda: loaded("json:loads", "test", "", RecipeError),
    "some memory": lambda: _held.append(np.ones(MOST_RETAINED // 2, np.uint8)),
    "memory": lambda: _held.append(np.ones(MOST_RETAINED + (32 << 20), np.uint8)),
}
