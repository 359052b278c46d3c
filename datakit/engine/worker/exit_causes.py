"""Determines why an attempt ended (memory, crash, hang, ...) from what its child left behind (reply, exit status, last
64 KiB of output), and composes the error message.

    what the child left                                   cause
    a complete reply with results                         done
    a complete reply with an exception                    error, refused, memory or quarantine, as the child reports
    killed by us                                          memory, hang, cancelled, refused (wrote too much) or error
                                                          (a disk is nearly full): our reason for the kill
    SIGKILL, and the kernel's count of memory kills rose  memory
    any other SIGKILL                                     killed
    death after a failed allocation                       memory: Rust and C++ abort without raising anything
    SIGPROF: a limit on the CPU time for one record       hang
    any other signal, or an exit without a reply          crash
    no status: the fork server is gone                    infrastructure

An allocation is assumed to have failed if the child printed a runtime's message about such a failure, had a hard limit
because its memory use grew fast (`memory_watcher.py`), or was close to the limit that it had set at its start
(`memory.py`). In the last two cases, the cause is "memory" even if the child reports "error".
"""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from datakit.engine.executor import Attempt, BatchedResult, Cause, Outcome
from datakit.engine.task import TaskResult
from datakit.engine.worker.heartbeat import HeartbeatState
from datakit.engine.worker.memory_watcher import MemoryUse
from datakit.engine.worker.reuse.attempt_files import FAULT_FILE, OUTPUT_FILE
from datakit.errors import DatakitError

FAILED_ALLOCATION = re.compile(rb"memory allocation of \d+ bytes failed|std::bad_alloc|out of memory", re.I)
TAIL_BYTES = 64 << 10  # number of bytes read at the end of a child's output, where the message of an abort appears


@dataclass(frozen=True)
class ExitStatus:
    """A child's wait status, its peak resident memory in bytes, and its CPU time in seconds. If the child is to run
    another attempt, the status is 0.
    """

    wait_status: int
    peak_resident: int
    user_seconds: float
    system_seconds: float = 0.0


@dataclass(frozen=True)
class ChildExit:
    """All that is known about a child that has ended an attempt. status: None if the fork server is gone. stopped_by:
    the error that made us kill the child, if any. written: the number of bytes that the child had written in this
    attempt at the last check. retained: the bytes that the child had kept from earlier attempts; they are part of its
    peak, because a new child would have used them, too. cpu_before: the CPU time of earlier attempts.
    """

    status: ExitStatus | None
    killed_for: Cause | None
    memory: MemoryUse
    budget: int
    kernel_killed: bool
    heartbeat: HeartbeatState
    scratch: Path
    stopped_by: DatakitError | None = None
    written: int = 0
    retained: int = 0
    cpu_before: float = 0.0

    @property
    def peak(self) -> int:
        """The peak of the child's memory in this attempt, in bytes beyond what it inherited from the fork server."""
        return self.memory.peak + self.retained


def conclude(attempt: Attempt, ended: ChildExit, content: dict[str, Any] | None, started: float) -> Outcome:
    """Return the outcome of an attempt that its child has ended. content: the child's reply; None if there is no
    complete one.
    """
    status = ended.status or ExitStatus(0, 0, 0.0)
    facts: dict[str, Any] = {
        "peak_memory": ended.peak,
        "peak_resident": status.peak_resident,
        "budget": ended.budget,
        "cpu_seconds": max(0.0, status.user_seconds + status.system_seconds - ended.cpu_before),
        "in_progress": ended.heartbeat.in_progress,
        "written": ended.written,
    }
    if content is None or ended.killed_for is not None:
        cause, kind, message = _cause_of_death(attempt, ended)
        return make_outcome(attempt, cause, started, message=message, error_type=kind, **facts)
    facts["written"] = content["written"]
    if "results" not in content:
        cause, message = _reported_failure(content, ended)
        return make_outcome(attempt, cause, started, message=message, error_type=content["error"], **facts)
    facts |= {"in_progress": None, "peak_memory": max(ended.peak, content["peak_memory"])}
    (first, seconds), *others = [(msgspec.convert(result, TaskResult), spent) for result, spent in content["results"]]
    more = tuple(BatchedResult(task.key, *done) for task, done in zip(attempt.more, others, strict=True))
    return make_outcome(attempt, Cause.DONE, started, result=first, work_seconds=seconds, more=more, **facts)


def _reported_failure(reply: dict[str, Any], ended: ChildExit) -> tuple[Cause, str]:
    """Return the cause and message of an exception that the child reported."""
    cause, message = Cause(reply["cause"]), reply["message"]
    if cause is Cause.ERROR and ended.memory.met_hard_limit:
        # Libraries report failed allocations in many ways. This may be such a report, so give the retry more memory.
        cause = Cause.MEMORY
    if cause is Cause.MEMORY:
        return cause, f"{_used(ended)}; {message}"
    return cause, message + (_records_in_progress(ended) if cause is Cause.ERROR else "")


def _cause_of_death(attempt: Attempt, ended: ChildExit) -> tuple[Cause, str, str]:
    """Return (cause, error type, message) for a child that sent no complete reply or that we killed."""
    place = f"{_records_in_progress(ended)}{_innermost_frames(ended.scratch)}"
    if ended.killed_for is Cause.MEMORY:
        return Cause.MEMORY, "OverBudget", f"{_used(ended)}{place}"
    if ended.killed_for is Cause.HANG:
        return Cause.HANG, "Hang", f"no progress for {attempt.hang_seconds:g} s{_progress(ended)}{place}"
    if ended.killed_for is not None and ended.stopped_by is not None:
        return ended.killed_for, type(ended.stopped_by).__name__, str(ended.stopped_by)
    if ended.killed_for is not None:
        return ended.killed_for, "Cancelled", "the run was stopped"
    if ended.status is None:
        return Cause.INFRASTRUCTURE, "ForkServerDied", "the fork server died"
    code = os.waitstatus_to_exitcode(ended.status.wait_status)
    how = signal_name(-code) if code < 0 else f"exit code {code} without a result"
    if code == -signal.SIGKILL and ended.kernel_killed:
        used = f"it used {_megabytes(ended.peak)} of its budget of {_megabytes(ended.budget)}"
        rest = "other processes used up the rest of the memory"
        return Cause.MEMORY, "KernelKill", f"the kernel killed it for lack of memory; {used}, and {rest}"
    if code == -signal.SIGKILL:
        return Cause.KILLED, how, f"killed by an external SIGKILL{_progress(ended)}"
    if code == -signal.SIGPROF:  # a task sets such a limit itself (`normalize/readers/web/extractors.py`)
        return Cause.HANG, "CpuLimit", f"used more CPU time than one record may take{_progress(ended)}{place}"
    if ended.memory.met_hard_limit or FAILED_ALLOCATION.search(_tail(ended.scratch / OUTPUT_FILE)):
        return Cause.MEMORY, "FailedAllocation", f"{_used(ended)}; an allocation failed ({how}){place}"
    return Cause.CRASH, how, f"{how}{_progress(ended)}{place}"


def signal_name(number: int) -> str:
    """Return a signal's name, or "signal N" if it has none (only two of the real-time signals have one)."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _used(ended: ChildExit) -> str:
    return f"used {_megabytes(ended.peak)} (budget: {_megabytes(ended.budget)})"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def _progress(ended: ChildExit) -> str:
    return f" after {ended.heartbeat.records} records and {ended.heartbeat.bytes_read} bytes"


def _records_in_progress(ended: ChildExit) -> str:
    return f", while processing {ended.heartbeat.in_progress}" if ended.heartbeat.in_progress is not None else ""


def _innermost_frames(scratch: Path) -> str:
    """Return the child's two innermost frames, read from the end of the file that faulthandler wrote; "" if there are
    none.
    """
    written = _tail(scratch / FAULT_FILE).decode(errors="replace")
    starts = [start for title in ("Current thread", "Stack (") if (start := written.rfind(title)) >= 0]
    frames = [line.strip() for line in written[max(starts, default=len(written)) :].splitlines()]
    frames = [line for line in frames if line.startswith("File ")]
    return f", in {'; '.join(frames[:2])}" if frames else ""


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read()
    except FileNotFoundError:
        return b""


def make_outcome(attempt: Attempt, cause: Cause, started: float, **facts: Any) -> Outcome:
    """Return an outcome of `attempt`, which started at the time `started` on the monotonic clock."""
    return Outcome.of(attempt, cause, seconds=time.monotonic() - started, node=os.uname().nodename, **facts)
