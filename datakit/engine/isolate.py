"""One attempt in one child: start it, watch its memory, collect its result, say with certainty how it ended.

The watcher looks every 50 ms and kills above the budget, so "out of memory" is known and not guessed from a signal. It
counts anonymous memory (resident minus shared) above what the child inherited from the fork server: mapped input files
are the page cache's, and the preloads are paid for once. Overshoot at 50 ms is about 100 MB for a fast allocator.

Cost: 3-12 ms an attempt.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import shutil
import signal
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datakit.engine import child, zygote
from datakit.engine.executor import Attempt, Cause, Outcome
from datakit.engine.forkserver import BootError, Zygote, ZygotePool
from datakit.engine.frames import receive_frame, send_frame
from datakit.engine.leftovers import scratch_directory
from datakit.engine.task import TaskResult, decode, encode
from datakit.errors import StorageError
from datakit.storage import urls

WATCH_SECONDS = 0.05
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class _Watched:
    """A running child, seen from the parent. `watch_peak` in bytes of anonymous memory above the inherited."""

    channel: socket.socket
    status: int
    cursor: mmap.mmap
    pid: int = 0
    inherited: int = 0
    watch_peak: int = 0
    killed_for: Cause | None = None


def run_attempt(attempt: Attempt, zygotes: ZygotePool, cancelled: threading.Event | None = None) -> Outcome:
    """Run one attempt to its end, whatever that is; never raises for what a task does."""
    started = time.monotonic()
    scratch = scratch_directory()
    try:
        shared = urls.read_bytes(urls.join(attempt.step_directory, attempt.shared)) if attempt.shared else None
        with zygotes.use(attempt.preloads) as server:
            return _in_child(_Request(attempt, shared, scratch), server, cancelled, started)
    except BootError as error:
        return _outcome(attempt, Cause(error.reply["cause"]), started, reply=error.reply)
    except StorageError as error:
        return _outcome(attempt, Cause.ERROR, started, message=str(error), error_type=type(error).__name__)
    except OSError as error:
        return _outcome(attempt, Cause.INFRASTRUCTURE, started, message=f"the fork server is gone: {error}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@dataclass(frozen=True)
class _Request:
    """What a child is asked to do."""

    attempt: Attempt
    shared: bytes | None
    scratch: Path

    def encode(self) -> bytes:
        return encode(
            {
                "task": encode(self.attempt.task),
                "shared": self.shared,
                "step_directory": self.attempt.step_directory,
                "scratch": str(self.scratch),
                "cpus": self.attempt.cpus,
            }
        )


def _in_child(request: _Request, server: Zygote, cancelled: threading.Event | None, started: float) -> Outcome:
    attempt = request.attempt
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    status_read, status_write = os.pipe()
    cursor = os.memfd_create("cursor")
    try:
        os.ftruncate(cursor, child.CURSOR.size)
        watched = _Watched(ours, status_read, mmap.mmap(cursor, child.CURSOR.size))
        server.fork(theirs.fileno(), status_write, cursor)
        theirs.close()
        os.close(status_write)
        status_write = -1
        first = os.read(status_read, zygote.PID.size)
        if not first:
            return _outcome(attempt, Cause.INFRASTRUCTURE, started, message="the fork server died before it forked")
        (watched.pid,) = zygote.PID.unpack(first)
        with contextlib.suppress(BrokenPipeError):  # a child that died at once is described by its status
            send_frame(ours, request.encode())
        reply = _watch(watched, attempt.memory_bytes, cancelled)
        return _conclude(attempt, watched, reply, request.scratch, started)
    finally:
        ours.close()
        theirs.close()
        os.close(cursor)
        os.close(status_read)
        if status_write >= 0:
            os.close(status_write)


def _watch(watched: _Watched, budget: int, cancelled: threading.Event | None) -> bytes | None:
    """Wait for the result or the end; the reply's bytes, or None where the child ended without a whole one."""
    poll = select.poll()
    poll.register(watched.channel, select.POLLIN)
    poll.register(watched.status, select.POLLIN)
    watched.inherited = _anonymous_bytes(watched.pid)
    while not poll.poll(WATCH_SECONDS * 1000):
        used = _anonymous_bytes(watched.pid) - watched.inherited
        watched.watch_peak = max(watched.watch_peak, used)
        if cancelled is not None and cancelled.is_set():
            _kill(watched, Cause.CANCELLED)
        elif used > budget:
            _kill(watched, Cause.MEMORY)
    try:
        return receive_frame(watched.channel)
    except (EOFError, ConnectionError):
        return None


def _kill(watched: _Watched, cause: Cause) -> None:
    watched.killed_for = watched.killed_for or cause
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(watched.pid, signal.SIGKILL)


def _conclude(attempt: Attempt, watched: _Watched, reply: bytes | None, scratch: Path, started: float) -> Outcome:
    ended = os.read(watched.status, zygote.END.size)
    wait_status, resident, user, system = zygote.END.unpack(ended) if ended else (0, 0, 0.0, 0.0)
    usage = {"peak_memory": resident, "cpu_seconds": user + system}
    if reply is not None and watched.killed_for is None:
        return _outcome(attempt, None, started, reply=decode(reply), **usage)
    if watched.killed_for is Cause.MEMORY:
        used, budget = watched.watch_peak >> 20, attempt.memory_bytes >> 20
        message = f"used {used} MiB, its budget is {budget} MiB"
        return _outcome(attempt, Cause.MEMORY, started, message=message, error_type="OverBudget", **usage)
    if watched.killed_for is Cause.CANCELLED:
        return _outcome(attempt, Cause.CANCELLED, started, message="the run was stopped", **usage)
    if not ended:
        return _outcome(attempt, Cause.INFRASTRUCTURE, started, message="the fork server died", **usage)
    code = os.waitstatus_to_exitcode(wait_status)
    how = signal.Signals(-code).name if code < 0 else f"exit code {code} without a result"
    records, bytes_read = child.CURSOR.unpack_from(watched.cursor, 0)
    message = f"{how} after {records} records and {bytes_read} bytes{_fault(scratch)}"
    return _outcome(attempt, Cause.CRASH, started, message=message, error_type=how, **usage)


def _fault(scratch: Path) -> str:
    """Where the child was, from faulthandler's file: the innermost frames only."""
    path = scratch / child.FAULT_FILE
    if not path.exists():
        return ""
    frames = [line.strip() for line in path.read_text().splitlines() if line.strip().startswith("File ")]
    return f", in {'; '.join(frames[:2])}" if frames else ""


def _outcome(
    attempt: Attempt, cause: Cause | None, started: float, reply: dict[str, Any] | None = None, **facts: Any
) -> Outcome:
    result = None
    if reply is not None and "result" in reply:
        result, cause = decode(encode(reply["result"]), TaskResult), Cause.DONE
        facts["work_seconds"] = reply["work_seconds"]
    elif reply is not None:
        facts |= {"message": reply["message"], "error_type": reply["error"]}
        cause = cause or Cause(reply["cause"])
    assert cause is not None
    return Outcome(
        phase=attempt.phase,
        key=attempt.task.key,
        number=attempt.number,
        cause=cause,
        result=result,
        seconds=time.monotonic() - started,
        node=os.uname().nodename,
        **facts,
    )


def _anonymous_bytes(pid: int) -> int:
    """Resident minus shared memory of a process, in bytes; 0 once it is gone."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return (int(resident) - int(shared)) * PAGE
