"""What happens in a forked child: boot assertions, the task function, the result, and out.

The child leaves with `os._exit` once its result is written: Arrow's exit handlers abort 17 % of plain interpreter exits
(7 of 40, measured), and a parent that trusts exit codes would call healthy work failed. So the result message decides.

An exception that is not ours is reported by type and place without its message: libraries quote what they choke on, and
that is document text. DATAKIT_DEBUG=1 shows it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import mmap
import os
import signal
import socket
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from datakit.engine.frames import receive_frame, send_frame
from datakit.engine.task import Preload, Task, TaskContext, TaskResult, decode, encode, resolve
from datakit.errors import DatakitError, InputError

FORBIDDEN = ("ray", "jax", "datakit.cli")  # heavy, multi-threaded, or the parent's business
BENIGN_THREADS = ("jemalloc_bg_thd",)  # started by `import pyarrow`; holds no lock of ours
CURSOR = struct.Struct("<QQ")  # records, bytes read
FAULT_FILE = "faults.txt"
PR_SET_PDEATHSIG = 1


def run(channel_descriptor: int, cursor_descriptor: int, preloads: tuple[Preload, ...]) -> None:
    """One attempt, from the request to the exit. Never returns."""
    _die_with_the_server()
    channel = socket.socket(fileno=channel_descriptor)
    request = decode(receive_frame(channel))
    scratch = Path(request["scratch"])
    faulthandler.enable(open(scratch / FAULT_FILE, "w"))  # noqa: SIM115 - open until the process ends
    cursor = mmap.mmap(cursor_descriptor, CURSOR.size)
    try:
        assert_clean_boot(preloads)
        _limit_threads(request["cpus"])
        began = time.monotonic()
        reply = {"result": _work(request, scratch, cursor), "work_seconds": time.monotonic() - began}
    except BaseException as error:  # noqa: BLE001 - everything is reported to the parent, which decides
        reply = describe_error(error)
    send_frame(channel, encode(reply))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _work(request: dict[str, Any], scratch: Path, cursor: mmap.mmap) -> TaskResult:
    task = decode(request["task"], Task)
    shared = decode(request["shared"]) if request["shared"] is not None else {}

    def report(records: int, bytes_read: int) -> None:
        CURSOR.pack_into(cursor, 0, records, bytes_read)

    context = TaskContext(request["step_directory"], scratch, request["cpus"], report)
    return resolve(task.function)(task.arguments, shared, context)


def assert_clean_boot(preloads: tuple[Preload, ...]) -> None:
    """Raises RuntimeError where the fork server did not do its work, or brought along what it must not."""
    missing = [preload.module for preload in preloads if preload.module not in sys.modules]
    if missing:
        raise RuntimeError(f"the fork server did not preload {', '.join(missing)}")
    brought = [module for module in FORBIDDEN if module in sys.modules]
    if brought:
        raise RuntimeError(f"the fork server has imported {', '.join(brought)}, which no task may carry")
    threads = foreign_threads()
    if threads:
        raise RuntimeError(f"the fork server had more threads than one: {', '.join(threads)}")


def foreign_threads() -> list[str]:
    """The names of this process's threads beside the main one and those known to be harmless."""
    names = []
    for thread in Path("/proc/self/task").iterdir():
        if thread.name != str(os.getpid()):
            with contextlib.suppress(FileNotFoundError):
                names.append((thread / "comm").read_text().strip())
    return [name for name in names if name not in BENIGN_THREADS]


def _die_with_the_server() -> None:
    """SIGKILL when the fork server ends. It is single-threaded, so 'the parent thread' is the parent process."""
    server = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    os.setsid()  # a group of its own, so that what a task starts is killed with it
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("900")  # the kernel takes a task before it takes the driver


def _limit_threads(cpus: int) -> None:
    import pyarrow as pa

    pa.set_cpu_count(cpus)
    pa.set_io_thread_count(max(2, cpus))
    os.environ["RAYON_NUM_THREADS"] = str(cpus)


def describe_error(error: BaseException) -> dict[str, Any]:
    """An exception as plain data: its type, a message without document text, and what kind of failure it is."""
    kind = type(error).__name__
    if isinstance(error, MemoryError):  # pyarrow's ArrowMemoryError is one too
        return {"error": kind, "message": "an allocation failed", "cause": "memory"}
    if isinstance(error, DatakitError):
        return {"error": kind, "message": str(error), "cause": "refused" if isinstance(error, InputError) else "error"}
    place = _place(error)
    if isinstance(error, OSError) and error.strerror:
        return {"error": kind, "message": f"{error.strerror}: {error.filename or ''} ({place})", "cause": "error"}
    if os.environ.get("DATAKIT_DEBUG"):
        return {"error": kind, "message": "".join(traceback.format_exception(error)), "cause": "error"}
    advice = "its message may quote documents and is shown with DATAKIT_DEBUG=1"
    return {"error": kind, "message": f"{kind} at {place}; {advice}", "cause": "error"}


def _place(error: BaseException) -> str:
    """`module.py:12 in function`, of the innermost frames, ours first."""
    frames = traceback.extract_tb(error.__traceback__)
    shown = [f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames[-3:]]
    return " < ".join(reversed(shown)) or "an unknown place"
