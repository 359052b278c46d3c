"""Runs one attempt in one child: requests the child, kills it on a hang or a cancellation, and collects its result.

A child whose heartbeat has not changed for the phase's `hang_seconds` is made to dump its stack and is then killed. A
process beside the fork server watches the child's memory (`memory_watcher.py`), and `exit_causes.py` determines how the
child ended. A child that writes too much, or that runs while a disk is nearly full, is killed, too (`disk_use.py`).
Each attempt takes 3-12 ms in addition to the time for its work.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path

from datakit.engine.executor import Attempt, Cause, Outcome
from datakit.engine.task import encode
from datakit.engine.worker import child, forking, forkserver
from datakit.engine.worker.boot_output import BootDeathError
from datakit.engine.worker.cgroups import kernel_kills
from datakit.engine.worker.disk_use import DiskWatch, shortage
from datakit.engine.worker.exit_causes import ChildExit, ExitStatus, conclude, make_outcome
from datakit.engine.worker.forkserver_client import BootError, ForkServer, ForkServerPool
from datakit.engine.worker.framing import receive_frame, send_frame
from datakit.engine.worker.heartbeat import Heartbeat, create_heartbeat_memory
from datakit.engine.worker.memory import usable_memory
from datakit.engine.worker.memory_watcher import MEMORY_USE, MemoryUse, kill
from datakit.errors import DatakitError, RefusedError, StorageError
from datakit.storage import urls
from datakit.storage.stale_files import scratch_directory

POLL_SECONDS = 0.1  # interval of the checks for hangs and cancellation; a result is noticed at once
DUMP_SECONDS = 2.0  # time for faulthandler to write a stack, which takes milliseconds on an idle machine
SILENT_SHARE = 0.25  # share of `hang_seconds` after which a silent attempt lends its slot to the next attempt
_usable_memory = cache(usable_memory)


def run_attempt(
    attempt: Attempt,
    servers: ForkServerPool,
    cancelled: threading.Event | None = None,
    report_silence: Callable[[bool], None] = lambda silent: None,
    report_written: Callable[[int], None] = lambda written: None,
) -> Outcome:
    """Run one attempt to its end, and return an outcome even if the child or the fork server dies. Raises RootError if
    access to the shared data is denied. `report_silence` is called repeatedly: with True while there has been no
    heartbeat for more than a quarter of `hang_seconds`, and otherwise with False. `report_written` is called with the
    number of bytes written so far.
    """
    started = time.monotonic()
    with scratch_directory() as scratch:
        try:
            if full := shortage(attempt.step_directory, attempt.limits):
                raise full
            watch = DiskWatch(attempt, report_written)
            shared = _shared(urls.join(attempt.step_directory, attempt.shared)) if attempt.shared else None
            budget = min(attempt.memory_bytes, _usable_memory())
            request = _Request(attempt, shared, scratch, budget, started, report_silence, watch)
            with servers.use(attempt.preloads) as server:
                return _run_in_child(request, server, cancelled)
        except BootError as error:
            cause, kind, message = error.reply["cause"], error.reply["error"], error.reply["message"]
            return make_outcome(attempt, Cause(cause), started, message=message, error_type=kind)
        except StorageError as error:
            return make_outcome(attempt, Cause.ERROR, started, message=str(error), error_type=type(error).__name__)
        except BootDeathError as error:
            return make_outcome(attempt, Cause.INFRASTRUCTURE, started, message=str(error), error_type=error.error_type)
        except OSError as error:
            return make_outcome(attempt, Cause.INFRASTRUCTURE, started, message=f"the fork server is gone: {error}")


@lru_cache(maxsize=1)
def _shared(url: str) -> bytes:
    """Read a phase's shared data, once per process. The data never changes, since the file name contains a digest."""
    return urls.read_bytes(url)


@dataclass(frozen=True)
class _Request:
    """A child's work. `budget`: the attempt's budget, capped at the memory that all attempts on the machine may use."""

    attempt: Attempt
    shared: bytes | None
    scratch: Path
    budget: int
    started: float
    report_silence: Callable[[bool], None]
    disk: DiskWatch
    kernel_kills: int = field(default_factory=kernel_kills)

    def encode(self) -> bytes:
        return encode(child.Request(self.attempt, self.shared, str(self.scratch), self.budget))


@dataclass
class _Child:
    """The parent's view of a running child. dumped: the time at which the child was asked for its stack, or 0.
    stopped_by: the error that made the parent kill the child, or None.
    """

    channel: socket.socket
    status: int
    heartbeat: Heartbeat
    pid: int = 0
    killed_for: Cause | None = None
    dumped: float = 0.0
    stopped_by: DatakitError | None = None

    def stop(self, error: DatakitError) -> None:
        """Kill the child, and record this error as the reason unless the child was already killed for another one."""
        if self.killed_for is None:
            self.stopped_by = error
        self.kill(Cause.REFUSED if isinstance(error, RefusedError) else Cause.ERROR)

    def kill(self, cause: Cause) -> None:
        self.killed_for = self.killed_for or cause
        kill(self.pid)


def _run_in_child(request: _Request, server: ForkServer, cancelled: threading.Event | None) -> Outcome:
    with _forked(server, request.budget) as running:
        first = os.read(running.status, forking.PID.size)
        if not first:
            message = "the fork server died before it forked"
            return make_outcome(request.attempt, Cause.INFRASTRUCTURE, request.started, message=message)
        (running.pid,) = forking.PID.unpack(first)
        with contextlib.suppress(BrokenPipeError):  # if the child died at once, its exit status shows why
            send_frame(running.channel, request.encode())
        reply = _await_reply(running, request, cancelled)
        return conclude(request.attempt, _exit_of(running, request), reply, request.started)


@contextlib.contextmanager
def _forked(server: ForkServer, budget: int) -> Iterator[_Child]:
    """Yield a child requested from the server, and close all descriptors at the end."""
    with contextlib.ExitStack() as open_files:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        open_files.enter_context(ours)
        with theirs:
            status_read, status_write = os.pipe()
            open_files.callback(os.close, status_read)
            try:
                heartbeat = create_heartbeat_memory()
                open_files.callback(os.close, heartbeat)
                running = _Child(ours, status_read, Heartbeat(heartbeat))
                server.fork(budget, status_write, theirs.fileno(), heartbeat)
            finally:
                os.close(status_write)
        yield running


def _await_reply(running: _Child, request: _Request, cancelled: threading.Event | None) -> bytes | None:
    """Wait for the child's reply or its exit; return the reply, or None if the child exited without a complete one."""
    poll = select.poll()
    poll.register(running.channel, select.POLLIN)
    poll.register(running.status, select.POLLIN)
    while not poll.poll(POLL_SECONDS * 1000):
        if cancelled is not None and cancelled.is_set():
            running.kill(Cause.CANCELLED)
        elif error := request.disk.check(running.pid, running.heartbeat):
            running.stop(error)
        else:
            _kill_if_hung(running, request)
    try:
        return receive_frame(running.channel)
    except (EOFError, ConnectionError):
        return None


def _kill_if_hung(running: _Child, request: _Request) -> None:
    """If the child has been silent for too long, make it dump its stack; kill it after the dump or after 2 seconds."""
    now, seconds = time.monotonic(), request.attempt.hang_seconds
    if seconds is None:
        return
    silent_for = now - max(running.heartbeat.updated(), request.started)
    request.report_silence(silent_for > SILENT_SHARE * seconds)
    if silent_for <= seconds:
        running.dumped = 0.0
    elif not running.dumped:
        running.dumped = now
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.pid, child.DUMP_SIGNAL)
    elif now - running.dumped > DUMP_SECONDS or (request.scratch / child.FAULT_FILE).stat().st_size:
        running.kill(Cause.HANG)


def _exit_of(running: _Child, request: _Request) -> ChildExit:
    ended = os.read(running.status, forkserver.EXIT_BYTES)
    status, memory = None, MemoryUse()
    if ended:
        status = ExitStatus(*forking.EXIT.unpack(ended[: forking.EXIT.size]))
        memory = MemoryUse(*MEMORY_USE.unpack(ended[forking.EXIT.size :]))
    return ChildExit(
        status=status,
        killed_for=Cause.MEMORY if memory.over_budget else running.killed_for,
        memory=memory,
        budget=request.budget,
        kernel_killed=kernel_kills() > request.kernel_kills,
        heartbeat=running.heartbeat.state(),
        scratch=request.scratch,
        stopped_by=running.stopped_by,
        written=request.disk.written,
    )
