"""Runs in the forked child: checks what the child inherited, runs the task functions of one attempt or of several in a
row, and reports results or errors.

A child runs another attempt only if its parent asks for it, and only if the previous one ended with a result and left
everything in the process as it was (`reuse/process_state.py`). It may have kept at most 128 MiB of memory. Anything
else ends the child, and the next attempt gets a new one. Staying saves the fork, the copies of the memory pages that a
new child writes to, and the end of the process, together some 15 ms of CPU time (docs/measurements.md).

The child exits with `os._exit` once its result is written. During an ordinary interpreter exit, Arrow's exit handlers
sometimes abort the process (in 7 of 40 measured exits), so a parent that trusted exit codes would count finished work
as failed. If there is a complete result message, the parent therefore ignores the exit code. An exception from outside
datakit, except an OSError, is reported by its type and place, without its message: libraries quote the input on which
they fail, and this input is document text. With DATAKIT_DEBUG=1, the message is shown.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
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
from datakit.engine.worker.memory import forget_peak, peak_resident, return_unused_memory, used_memory
from datakit.engine.worker.memory_watcher import OwnMemory, die_with
from datakit.engine.worker.reuse.attempt_files import AttemptFiles, flush
from datakit.engine.worker.reuse.process_state import State, differences, process_state
from datakit.errors import DatakitError, InputError, PartialError, RefusedError, TaskError, chain_of, messages_of

FORBIDDEN = ("ray", "jax", "datakit.cli")  # heavy, multi-threaded, or needed only by the parent
BENIGN_THREADS = ("jemalloc_bg_thd",)  # started by `import pyarrow`; holds no lock that a child needs
UNNAMED_SECONDS = 2.0  # on a busy machine, a new thread runs late
OOM_SCORE = "900"  # out of 1000, so that the kernel's OOM killer chooses a child rather than the driver
MOST_RETAINED = 128 << 20  # a child that keeps more memory than this from its attempts, in bytes, is not used again


@dataclass(frozen=True)
class Request:
    """A child's work: the attempt, the shared data of its phase, a scratch directory, and a memory budget in bytes.

    may_stay: True if the child may wait for another attempt afterward.
    """

    attempt: Attempt
    shared: bytes | None
    scratch: str
    budget: int
    may_stay: bool = False


def run(
    channel_descriptor: int, heartbeat_descriptor: int, preloads: tuple[Preload, ...], own_memory: OwnMemory
) -> None:
    """Receive requests, run their attempts and send the replies. Never returns."""
    _die_with_the_server()
    channel = socket.socket(fileno=channel_descriptor)
    child, request = _Child(own_memory, Heartbeat(heartbeat_descriptor)), decode(receive_frame(channel), Request)
    try:
        child.begin(request, preloads)
    except BaseException as error:  # noqa: BLE001 - reported to the parent, which decides
        reply = describe_error(error)
    else:
        reply = child.attempt(request)
    while True:
        reply |= child.usage()
        stays = request.may_stay and "results" in reply and child.may_stay()
        send_frame(channel, encode({**reply, "stays": stays, "retained": child.retained()}))
        if not stays:
            flush()
            os._exit(0)
        reply.clear()  # or the next attempt would hold the results of this one
        request = _next_request(channel)
        child.begin_again(request)
        reply = child.attempt(request)


def _next_request(channel: socket.socket) -> Request:
    try:
        return decode(receive_frame(channel), Request)
    except (EOFError, ConnectionError):
        os._exit(0)  # the parent needs this child no longer


class _Child:
    """The process that runs attempts one after another."""

    def __init__(self, own_memory: OwnMemory, heartbeat: Heartbeat) -> None:
        self._memory, self._heartbeat = own_memory, heartbeat
        self._files = AttemptFiles()
        self._clean: State | None = None  # the state of this process before its first attempt
        self._written_before = 0

    def begin(self, request: Request, preloads: tuple[Preload, ...]) -> None:
        """Prepare this process for its first attempt. Raises TaskError if the process has not inherited what it
        should.
        """
        self._memory.begin(request.budget)
        _limit_threads(request.attempt.cpus)
        if request.may_stay:
            with contextlib.suppress(OSError):
                self._clean = process_state()
        self._files.open(Path(request.scratch))
        assert_clean_boot(preloads)

    def begin_again(self, request: Request) -> None:
        """Prepare this process for a further attempt. If this fails, the process ends before the attempt has begun."""
        self._written_before = written_bytes("self")
        self._files.open(Path(request.scratch))
        self._memory.begin_again(request.budget)

    def attempt(self, request: Request) -> dict[str, Any]:
        """Run the tasks of an attempt; return the reply."""
        try:
            return {"results": list(_run_tasks(request, Path(request.scratch), self._heartbeat))}
        except BaseException as error:  # noqa: BLE001 - reported to the parent, which decides
            return describe_error(error)

    def usage(self) -> dict[str, Any]:
        """Return what the attempt has used, and what this process has used since its fork."""
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        written = written_bytes("self")
        return {
            "peak_memory": self._memory.peak(),
            "peak_resident": peak_resident(),
            "written": written - self._written_before,
            "written_in_all": written,
            "cpu_seconds_in_all": sum(use.ru_utime + use.ru_stime for use in used),
        }

    def may_stay(self) -> bool:
        """Return True if the attempt has left nothing in this process that could affect another attempt. An error says
        no more than that this is unknown; it must not cost the attempt's result, which has not been sent yet.
        """
        try:
            self._files.close()
            if self._clean is None or self._memory.over_budget():
                return False
            if self._has_changed():
                gc.collect()  # what a cycle of objects holds, such as an open file, will not be used again
                if self._has_changed():
                    return False
            if self.retained() > MOST_RETAINED:
                return_unused_memory()
            forget_peak()
            return self.retained() <= MOST_RETAINED
        except Exception:  # noqa: BLE001 - then this child ends, as it would without reuse
            return False

    def _has_changed(self) -> bool:
        assert self._clean is not None
        return bool(differences(self._clean, process_state()) or _forbidden_modules())

    def retained(self) -> int:
        """Return how many bytes this process has kept from its attempts."""
        return used_memory("self").used - self._memory.inherited


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
    if brought := _forbidden_modules():
        raise TaskError(f"the fork server has imported {', '.join(brought)}, which tasks must not inherit")


def _forbidden_modules() -> list[str]:
    return [module for module in FORBIDDEN if module in sys.modules]


def foreign_threads() -> list[str]:
    """Return the names of this process's threads, except the main thread and those known to be harmless."""
    names = []
    for thread in Path("/proc/self/task").iterdir():
        if thread.name != str(os.getpid()):
            with contextlib.suppress(FileNotFoundError):
                names.append((thread / "comm").read_text().strip())
    return [name for name in names if name not in BENIGN_THREADS]


def require_one_thread(started_by: str) -> None:
    """Raise TaskError if this process has other threads: a fork copies their locks, but not the threads.

    A new thread has the name of its creator until it runs and names itself, so such a thread is given some time.
    """
    own, deadline = Path("/proc/self/comm").read_text().strip(), time.monotonic() + UNNAMED_SECONDS
    while own in (threads := foreign_threads()) and time.monotonic() < deadline:
        time.sleep(0.01)
    if threads:
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
