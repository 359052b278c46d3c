"""One attempt in one child: start it, watch its cursor, collect its result.

A child whose cursor has not moved for the phase's `hang_seconds` is made to write down where it is, and killed. Its
memory is watched by the fork server (`memory_watcher.py`).

How it ended is said with certainty in `exit_causes.py`. Cost: 3-12 ms an attempt.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from datakit.engine.executor import Attempt, Cause, Outcome
from datakit.engine.task import encode
from datakit.engine.worker import child, forkserver
from datakit.engine.worker.exit_causes import Ending, conclude, outcome_of
from datakit.engine.worker.forkserver_client import BootError, Zygote, ZygotePool
from datakit.engine.worker.framing import receive_frame, send_frame
from datakit.engine.worker.heartbeat import Cursor, create
from datakit.engine.worker.memory_limits import kernel_kills, usable_memory
from datakit.engine.worker.memory_watcher import READING, Reading, kill
from datakit.errors import StorageError
from datakit.storage import urls
from datakit.storage.stale_files import scratch_directory

WATCH_SECONDS = 0.05
DUMP_SECONDS = 2.0
SILENT = 0.25  # of the time that makes a hang


def run_attempt(
    attempt: Attempt,
    zygotes: ZygotePool,
    cancelled: threading.Event | None = None,
    silent: Callable[[bool], None] = lambda silent: None,
) -> Outcome:
    """Run one attempt to its end, whatever that is; never raises for what a task does.

    silent: told, again and again, whether the cursor has stood still for a quarter of what makes it a hang.
    """
    started = time.monotonic()
    scratch = scratch_directory()
    try:
        shared = _shared(urls.join(attempt.step_directory, attempt.shared)) if attempt.shared else None
        budget = min(attempt.memory_bytes, _usable_memory())
        with zygotes.use(attempt.preloads) as server:
            return _in_child(_Request(attempt, shared, scratch, budget, started, silent), server, cancelled)
    except BootError as error:
        cause, kind, message = error.reply["cause"], error.reply["error"], error.reply["message"]
        return outcome_of(attempt, Cause(cause), started, message=message, error_type=kind)
    except StorageError as error:
        return outcome_of(attempt, Cause.ERROR, started, message=str(error), error_type=type(error).__name__)
    except OSError as error:
        return outcome_of(attempt, Cause.INFRASTRUCTURE, started, message=f"the fork server is gone: {error}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@lru_cache(maxsize=1)
def _shared(url: str) -> bytes:
    """What all tasks of a phase share, read once a process: its name holds its digest, so it never changes."""
    return urls.read_bytes(url)


@lru_cache(maxsize=1)
def _usable_memory() -> int:
    return usable_memory()


@dataclass(frozen=True)
class _Request:
    """What a child is asked to do. `budget`: of memory, at most what this machine has for all attempts together."""

    attempt: Attempt
    shared: bytes | None
    scratch: Path
    budget: int
    started: float
    silent: Callable[[bool], None]
    kernel_kills: int = field(default_factory=kernel_kills)

    def encode(self) -> bytes:
        attempt = self.attempt
        return encode(
            {
                "tasks": [encode(task) for task in (attempt.task, *attempt.more)],
                "shared": self.shared,
                "step_directory": attempt.step_directory,
                "scratch": str(self.scratch),
                "cpus": attempt.cpus,
                "memory_bytes": self.budget,
                "try_singly": encode(attempt.try_singly),
                "skip": encode(attempt.skip),
                "tolerance": encode(attempt.tolerance),
            }
        )


@dataclass
class _Watched:
    """A running child, seen from the parent."""

    channel: socket.socket
    status: int
    cursor: Cursor
    pid: int = 0
    killed_for: Cause | None = None
    dumped: float = 0.0


def _in_child(request: _Request, server: Zygote, cancelled: threading.Event | None) -> Outcome:
    attempt = request.attempt
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    status_read, status_write = os.pipe()
    cursor = create()
    try:
        watched = _Watched(ours, status_read, Cursor(cursor))
        server.fork(request.budget, theirs.fileno(), status_write, cursor)
        theirs.close()
        os.close(status_write)
        status_write = -1
        first = os.read(status_read, forkserver.PID.size)
        if not first:
            message = "the fork server died before it forked"
            return outcome_of(attempt, Cause.INFRASTRUCTURE, request.started, message=message)
        (watched.pid,) = forkserver.PID.unpack(first)
        with contextlib.suppress(BrokenPipeError):  # a child that died at once is described by its status
            send_frame(ours, request.encode())
        reply = _watch(watched, request, cancelled)
        return conclude(attempt, _ending(watched, request), reply, request.started)
    finally:
        ours.close()
        theirs.close()
        os.close(cursor)
        os.close(status_read)
        if status_write >= 0:
            os.close(status_write)


def _watch(watched: _Watched, request: _Request, cancelled: threading.Event | None) -> bytes | None:
    """Wait for the result or the end; the reply's bytes, or None where the child ended without a whole one."""
    poll = select.poll()
    poll.register(watched.channel, select.POLLIN)
    poll.register(watched.status, select.POLLIN)
    while not poll.poll(WATCH_SECONDS * 1000):
        if cancelled is not None and cancelled.is_set():
            _kill(watched, Cause.CANCELLED)
        else:
            _kill_if_hung(watched, request)
    try:
        return receive_frame(watched.channel)
    except (EOFError, ConnectionError):
        return None


def _kill_if_hung(watched: _Watched, request: _Request) -> None:
    """First it is asked where it is; then it has a moment to write that down."""
    now, seconds = time.monotonic(), request.attempt.hang_seconds
    if seconds is None:
        return
    still = now - max(watched.cursor.moved(), request.started)
    request.silent(still > SILENT * seconds)
    if still <= seconds:
        watched.dumped = 0.0
    elif not watched.dumped:
        watched.dumped = now
        with contextlib.suppress(ProcessLookupError):
            os.kill(watched.pid, child.DUMP_SIGNAL)
    elif now - watched.dumped > DUMP_SECONDS or (request.scratch / child.FAULT_FILE).stat().st_size:
        _kill(watched, Cause.HANG)


def _kill(watched: _Watched, cause: Cause) -> None:
    watched.killed_for = watched.killed_for or cause
    kill(watched.pid)


def _ending(watched: _Watched, request: _Request) -> Ending:
    ended = os.read(watched.status, forkserver.END_BYTES)
    reading = Reading(*READING.unpack(ended[forkserver.END.size :])) if ended else Reading()
    return Ending(
        status=forkserver.END.unpack(ended[: forkserver.END.size]) if ended else None,
        killed_for=Cause.MEMORY if reading.over_budget else watched.killed_for,
        peak=reading.peak,
        inherited=reading.inherited,
        budget=request.budget,
        out_of_reserves=reading.out_of_reserves,
        kernel_killed=kernel_kills() > request.kernel_kills,
        view=watched.cursor.view(),
        scratch=request.scratch,
    )
