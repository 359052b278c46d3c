"""Runs in the forked child: checks what the child inherited, diverts standard output and error to a file, runs the task
functions, and reports results or errors.

The child exits with `os._exit` once its result is written. During an ordinary interpreter exit, Arrow's exit handlers
sometimes abort the process (in 7 of 40 measured exits), so a parent that trusted exit codes would count finished work
as failed. If there is a complete result message, the parent therefore ignores the exit code. An exception from outside
datakit, except an OSError, is reported by its type and place, without its message: libraries quote the input on which
they fail, and this input is document text. With DATAKIT_DEBUG=1, the message is shown.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datakit.engine.executor import Attempt
from datakit.engine.task import Preload, TaskContext, decode, encode, resolve
from datakit.engine.worker.disk_use import excess, write_limit, written_bytes
from datakit.engine.worker.framing import receive_frame, send_frame
from datakit.engine.worker.heartbeat import Heartbeat
from datakit.engine.worker.memory import limit_own_memory, used_memory
from datakit.engine.worker.memory_watcher import die_with
from datakit.errors import DatakitError, InputError, PartialError, RefusedError, TaskError, chain_of, messages_of
from datakit.storage.stale_files import share_scratch

FORBIDDEN = ("ray", "jax", "datakit.cli")  # heavy, multi-threaded, or needed only by the parent
BENIGN_THREADS = ("jemalloc_bg_thd",)  # started by `import pyarrow`; holds no lock that a child needs
FAULT_FILE = "faults.txt"
OUTPUT_FILE = "output.txt"
DUMP_SIGNAL = signal.SIGUSR1
OOM_SCORE = "900"  # out of 1000, so that the kernel's OOM killer chooses a child rather than the driver


@dataclass(frozen=True)
class Request:
    """A child's work: the attempt, the shared data of its phase, a scratch directory, and a memory budget in bytes."""

    attempt: Attempt
    shared: bytes | None
    scratch: str
    budget: int


def run(channel_descriptor: int, heartbeat_descriptor: int, preloads: tuple[Preload, ...]) -> None:
    """Receive a request, run its attempt, send the reply and exit. Never returns."""
    _die_with_the_server()
    channel = socket.socket(fileno=channel_descriptor)
    request = decode(receive_frame(channel), Request)
    scratch = Path(request.scratch)
    share_scratch(scratch)  # if the driver dies first, the next run must not remove this directory while we use it
    faults = open(scratch / FAULT_FILE, "w")  # noqa: SIM115 - open until the process ends
    faulthandler.enable(faults)
    faulthandler.register(DUMP_SIGNAL, faults, all_threads=False)
    _divert_output(scratch)
    try:
        assert_clean_boot(preloads)
        _limit_threads(request.attempt.cpus)
        limit_own_memory(request.budget)
        results = list(_run_tasks(request, scratch, Heartbeat(heartbeat_descriptor)))
        reply = {"results": results, "memory": used_memory("self")[0]}
    except BaseException as error:  # noqa: BLE001 - reported to the parent, which decides
        reply = describe_error(error)
    send_frame(channel, encode({**reply, "written": written_bytes("self")}))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _divert_output(scratch: Path) -> None:
    """Redirect libraries' output to a file, because it may quote documents and would garble the progress display."""
    if not os.environ.get("DATAKIT_DEBUG"):
        output = os.open(scratch / OUTPUT_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)


def _run_tasks(request: Request, scratch: Path, heartbeat: Heartbeat) -> Iterator[tuple[Any, float]]:
    """Run the tasks of the attempt, and yield (result, seconds) for each one."""
    attempt, shared = request.attempt, decode(request.shared) if request.shared is not None else {}
    skip = {(record.file, record.position): record.reason for record in attempt.skip}
    try_singly = frozenset((batch.file, batch.position) for batch in attempt.try_singly)
    for number, task in enumerate((attempt.task, *attempt.more)):
        started, before = time.monotonic(), written_bytes("self")
        heartbeat.begin(number, before)
        task_scratch = scratch / str(number)
        task_scratch.mkdir()
        context = TaskContext(
            step_directory=attempt.step_directory,
            scratch=task_scratch,
            cpus=attempt.cpus,
            report=heartbeat.report,
            hold=heartbeat.hold,
            release=heartbeat.release,
            try_singly=try_singly,
            skip=skip,
            tolerance=attempt.tolerance,
            write_limit=write_limit(attempt, task),
        )
        result = resolve(task.function)(task.all_arguments(), shared, context)
        if too_much := excess(attempt, number, written_bytes("self") - before):
            raise too_much
        yield result, time.monotonic() - started


def assert_clean_boot(preloads: tuple[Preload, ...]) -> None:
    """Raise TaskError if a preload is missing or a forbidden module has been imported."""
    missing = [preload.module for preload in preloads if preload.module not in sys.modules]
    if missing:
        raise TaskError(f"the fork server did not preload {', '.join(missing)}")
    brought = [module for module in FORBIDDEN if module in sys.modules]
    if brought:
        raise TaskError(f"the fork server has imported {', '.join(brought)}, which tasks must not inherit")


def foreign_threads() -> list[str]:
    """Return the names of this process's threads, except the main thread and those known to be harmless."""
    names = []
    for thread in Path("/proc/self/task").iterdir():
        if thread.name != str(os.getpid()):
            with contextlib.suppress(FileNotFoundError):
                names.append((thread / "comm").read_text().strip())
    return [name for name in names if name not in BENIGN_THREADS]


def require_one_thread(started_by: str) -> None:
    """Raise TaskError if this process has other threads: a fork copies their locks, but not the threads."""
    if threads := foreign_threads():
        raise TaskError(f"{started_by} started threads ({', '.join(threads)}), so the server cannot fork safely")


def _die_with_the_server() -> None:
    die_with(os.getppid())
    os.setsid()  # makes a process group of its own, so that processes that a task starts are killed with the child
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)


def _limit_threads(cpus: int) -> None:
    import pyarrow as pa

    pa.set_cpu_count(cpus)
    pa.set_io_thread_count(max(2, cpus))
    os.environ["RAYON_NUM_THREADS"] = str(cpus)


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as plain data: type, message without document text, and the cause of the attempt's end."""
    kind = type(error).__name__
    if any(_is_memory(link) for link in chain_of(error)):
        return {"error": kind, "message": f"an allocation failed at {_place(error)}", "cause": "memory"}
    if isinstance(error, RefusedError):  # one line per refused input; the driver collects these lines
        return {"error": kind, "message": "\n".join(messages_of([error])), "cause": _cause(error)}
    if isinstance(error, DatakitError):
        return {"error": kind, "message": str(error), "cause": _cause(error)}
    place = _place(error)
    if isinstance(error, OSError) and error.strerror:
        return {"error": kind, "message": f"{error.strerror}: {error.filename or ''} ({place})", "cause": "error"}
    if os.environ.get("DATAKIT_DEBUG"):
        return {"error": kind, "message": "".join(traceback.format_exception(error)), "cause": "error"}
    advice = "its message may quote documents and is shown with DATAKIT_DEBUG=1"
    return {"error": kind, "message": f"{kind} at {place}; {advice}", "cause": "error"}


def _cause(error: DatakitError) -> str:
    if isinstance(error, PartialError):
        return "quarantine"
    return "refused" if isinstance(error, InputError) else "error"


def _is_memory(error: BaseException) -> bool:
    """Return True if the exception reports a failed allocation. Python, numpy and Arrow raise MemoryError or a
    subclass, DuckDB raises an exception of its own, and TensorStore raises a general exception whose text starts with a
    status code.
    """
    if isinstance(error, MemoryError):
        return True
    if type(error).__module__.partition(".")[0] in ("duckdb", "_duckdb") and "OutOfMemory" in type(error).__name__:
        return True
    return str(error)[:100].startswith("RESOURCE_EXHAUSTED") or "std::bad_alloc" in str(error)[:100]


def _place(error: BaseException) -> str:
    """Return the three innermost frames, innermost first, in the form `module.py:12 in function < ...`."""
    frames = traceback.extract_tb(error.__traceback__)
    shown = [f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames[-3:]]
    return " < ".join(reversed(shown)) or "an unknown place"
