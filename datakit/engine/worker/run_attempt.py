"""Runs one attempt: finds or requests a child for it, kills the child on a hang or a cancellation, and collects the
result.

A child whose heartbeat has not changed for the phase's `hang_seconds` is made to dump its stack and is then killed. A
process beside the fork server watches the child's memory (`memory_watcher.py`), and `exit_causes.py` determines how the
child ended. A child that writes too much, or that runs while a disk is nearly full, is killed, too (`disk_use.py`).
In a new child, an attempt takes 3-12 ms in addition to the time for its work. If the child had run other attempts and
died before it began this one, the attempt has not failed: it starts over in a new child.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from datakit.engine.executor import Attempt, Cause, Outcome
from datakit.engine.task import decode, encode
from datakit.engine.worker.boot_output import BootDeathError
from datakit.engine.worker.cgroups import kernel_kills
from datakit.engine.worker.child import Request
from datakit.engine.worker.disk_use import DiskWatch, shortage
from datakit.engine.worker.exit_causes import ChildExit, ExitStatus, conclude, make_outcome
from datakit.engine.worker.forkserver_client import BootError, ForkServer, ForkServerPool
from datakit.engine.worker.handles.child_process import ChildProcess
from datakit.engine.worker.handles.kept_children import Seat
from datakit.engine.worker.memory import usable_memory
from datakit.engine.worker.memory_watcher import MemoryUse, kill
from datakit.engine.worker.reuse.attempt_files import DUMP_SIGNAL, FAULT_FILE
from datakit.errors import StorageError
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
    *,
    seat: Seat | None = None,
) -> Outcome:
    """Run one attempt to its end, and return an outcome even if the child or the fork server dies. Raises RootError if
    access to the shared data is denied. `report_silence` is called repeatedly: with True while there has been no
    heartbeat for more than a quarter of `hang_seconds`, and otherwise with False. `report_written` is called with the
    number of bytes written so far. `seat` holds a kept child to be used, if any, and afterward the child to be kept, if
    any. Without a seat, the attempt gets a new child, which then ends.
    """
    seat = seat or Seat(shared=False)
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
                return _run_in_child(request, server, seat, cancelled)
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

    def encode(self, may_stay: bool) -> bytes:
        return encode(Request(self.attempt, self.shared, str(self.scratch), self.budget, may_stay))


def _run_in_child(request: _Request, server: ForkServer, seat: Seat, cancelled: threading.Event | None) -> Outcome:
    kept = seat.take()
    if kept is not None:
        if kept.server is server and not kept.has_ended():
            request.disk.before = kept.written
            outcome = _run_on(kept, request, seat, cancelled)
            if outcome is not None:
                return outcome
            request.disk.before = request.disk.written = 0
        else:
            kept.end()
    child = ChildProcess.forked(server, request.budget)
    if child is None:
        message = "the fork server died before it forked"
        return make_outcome(request.attempt, Cause.INFRASTRUCTURE, request.started, message=message)
    outcome = _run_on(child, request, seat, cancelled)
    assert outcome is not None
    return outcome


def _run_on(child: ChildProcess, request: _Request, seat: Seat, cancelled: threading.Event | None) -> Outcome | None:
    """Run the attempt in this child, and leave the child in the seat if it may run another one. Return None if the
    child had run other attempts and ended by itself before it began this one.
    """
    may_stay = seat.may_stay(child)
    try:
        child.send(request.encode(may_stay))
        answer = _await_reply(child, request, cancelled)
        reply = decode(answer) if answer is not None else None
        if reply is not None and reply["stays"] and child.killed_for is None:
            outcome = conclude(request.attempt, _end_of(child, request, reply), reply, request.started)
            child.finish_attempt(reply)
            seat.child = child
            return outcome
        ended = _end_of(child, request)
        if child.attempts and reply is None and ended.killed_for is None and not child.heartbeat.updated():
            return None
        return conclude(request.attempt, ended, reply, request.started)
    except BaseException:
        if not child.has_ended():
            kill(child.pid)  # closing does not end a child that is at work or that is stopped by a signal
        raise
    finally:
        if seat.child is not child:
            child.close()


def _await_reply(child: ChildProcess, request: _Request, cancelled: threading.Event | None) -> bytes | None:
    """Wait for the child's reply or its exit; return the reply, or None if the child exited without a complete one."""
    poll = select.poll()
    poll.register(child.channel, select.POLLIN)
    poll.register(child.status, select.POLLIN)
    while not poll.poll(POLL_SECONDS * 1000):
        if cancelled is not None and cancelled.is_set():
            child.kill(Cause.CANCELLED)
        elif error := request.disk.check(child.pid, child.heartbeat):
            child.stop(error)
        else:
            _kill_if_hung(child, request)
    return child.receive()


def _kill_if_hung(child: ChildProcess, request: _Request) -> None:
    """If the child has been silent for too long, make it dump its stack; kill it after the dump or after 2 seconds."""
    now, seconds = time.monotonic(), request.attempt.hang_seconds
    if seconds is None:
        return
    silent_for = now - max(child.heartbeat.updated(), request.started)
    request.report_silence(silent_for > SILENT_SHARE * seconds)
    if silent_for <= seconds:
        child.dumped = 0.0
    elif not child.dumped:
        child.dumped = now
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, DUMP_SIGNAL)
    elif now - child.dumped > DUMP_SECONDS or _size(request.scratch / FAULT_FILE):
        child.kill(Cause.HANG)


def _size(path: Path) -> int:
    """Return the size of a file; 0 if it does not exist, because the child has not begun."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _end_of(child: ChildProcess, request: _Request, reply: dict[str, Any] | None = None) -> ChildExit:
    """Describe the end of an attempt: that of a child that stays, with this reply, or else that of a child's exit."""
    if reply is None:
        status, memory = child.exit()
    else:
        status = ExitStatus(0, reply["peak_resident"], reply["cpu_seconds_in_all"])
        memory = MemoryUse()  # the reply contains the peak
    return ChildExit(
        status=status,
        killed_for=Cause.MEMORY if memory.over_budget else child.killed_for,
        memory=memory,
        budget=request.budget,
        kernel_killed=kernel_kills() > request.kernel_kills,
        heartbeat=child.heartbeat.state(),
        scratch=request.scratch,
        stopped_by=child.stopped_by,
        written=request.disk.written,
        retained=child.retained,
        cpu_before=child.cpu_seconds,
    )
