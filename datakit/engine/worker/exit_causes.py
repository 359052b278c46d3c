"""How an attempt ended, with certainty: the table from what is left of a child to a cause.

    what is left                                          cause
    a whole reply with results                            done
    a whole reply with an exception                       error, refused, memory or quarantine, as the child says
    our own kill                                          memory, hang or cancelled: the reason for which we killed
    SIGKILL, and the kernel's count of memory kills rose  memory
    SIGKILL from somebody else                            killed
    death after a failed allocation                       memory: Rust and C++ abort without raising anything
    any other signal, or an exit without a reply          crash
    no status: the fork server is gone                    infrastructure

An allocation has failed if what the child printed says so in its runtime's words, or its reserves were used up (or
walled in, see `memory_watcher.py`). An exception at that moment counts as one, too.
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
from datakit.engine.task import TaskResult, decode
from datakit.engine.worker import child
from datakit.engine.worker.heartbeat import View

FAILED_ALLOCATION = re.compile(rb"memory allocation of \d+ bytes failed|std::bad_alloc|out of memory", re.I)
TAIL_BYTES = 64 << 10


@dataclass(frozen=True)
class Ending:
    """What is left of a child. status: (wait status, peak resident bytes, user and system seconds), None if unknown."""

    status: tuple[int, int, float, float] | None
    killed_for: Cause | None
    peak: int
    inherited: int
    budget: int
    out_of_reserves: bool
    kernel_killed: bool
    view: View
    scratch: Path


def conclude(attempt: Attempt, ending: Ending, reply: bytes | None, started: float) -> Outcome:
    """The outcome of an attempt whose child has ended."""
    _, resident, user, system = ending.status or (0, 0, 0.0, 0.0)
    facts: dict[str, Any] = {
        "peak_memory": ending.peak,
        "peak_resident": resident,
        "budget": ending.budget,
        "cpu_seconds": user + system,
        "in_progress": ending.view.held,
    }
    if reply is not None and ending.killed_for is None:
        return _replied(attempt, ending, decode(reply), started, facts)
    cause, kind, message = _died(attempt, ending)
    return outcome_of(attempt, cause, started, message=message, error_type=kind, **facts)


def _replied(attempt: Attempt, ending: Ending, reply: dict[str, Any], started: float, facts: dict[str, Any]) -> Outcome:
    if "results" not in reply:
        message, kind, cause = reply["message"], reply["error"], Cause(reply["cause"])
        if cause is Cause.ERROR and ending.out_of_reserves:
            cause = Cause.MEMORY  # libraries have many words for it: with more memory it is told what it was
        message = f"{_used(ending)}; {message}" if cause is Cause.MEMORY else message
        message += _in_hand(ending) if cause is Cause.ERROR else ""
        return outcome_of(attempt, cause, started, message=message, error_type=kind, **facts)
    facts |= {"in_progress": None, "peak_memory": max(ending.peak, reply["memory"] - ending.inherited)}
    (first, seconds), *others = [(msgspec.convert(result, TaskResult), spent) for result, spent in reply["results"]]
    more = tuple(BatchedResult(task.key, *done) for task, done in zip(attempt.more, others, strict=True))
    return outcome_of(attempt, Cause.DONE, started, result=first, work_seconds=seconds, more=more, **facts)


def _died(attempt: Attempt, ending: Ending) -> tuple[Cause, str, str]:
    """(cause, the type of the error, a message)."""
    where = f"{_in_hand(ending)}{_frames(ending.scratch)}"
    if ending.killed_for is Cause.MEMORY:
        return Cause.MEMORY, "OverBudget", f"{_used(ending)}{where}"
    if ending.killed_for is Cause.HANG:
        return Cause.HANG, "Hang", f"no progress for {attempt.hang_seconds:g} s{_so_far(ending)}{where}"
    if ending.killed_for is not None:
        return ending.killed_for, "Cancelled", "the run was stopped"
    if ending.status is None:
        return Cause.INFRASTRUCTURE, "ForkServerDied", "the fork server died"
    code = os.waitstatus_to_exitcode(ending.status[0])
    how = signal.Signals(-code).name if code < 0 else f"exit code {code} without a result"
    if code == -signal.SIGKILL and ending.kernel_killed:
        used = f"used {_mib(ending.peak)} of its {_mib(ending.budget)}"
        return Cause.MEMORY, "KernelKill", f"the kernel killed it for lack of memory: it {used}; others took the rest"
    if code == -signal.SIGKILL:
        return Cause.KILLED, how, f"somebody sent SIGKILL{_so_far(ending)}"
    if ending.out_of_reserves or FAILED_ALLOCATION.search(_tail(ending.scratch / child.OUTPUT_FILE)):
        return Cause.MEMORY, "FailedAllocation", f"{_used(ending)}; an allocation failed ({how}){where}"
    return Cause.CRASH, how, f"{how}{_so_far(ending)}{where}"


def _used(ending: Ending) -> str:
    return f"used {_mib(ending.peak)}, its budget is {_mib(ending.budget)}"


def _mib(count: int) -> str:
    return f"{count >> 20} MiB"


def _so_far(ending: Ending) -> str:
    return f" after {ending.view.records} records and {ending.view.bytes_read} bytes"


def _in_hand(ending: Ending) -> str:
    return f", with {ending.view.held} in hand" if ending.view.held is not None else ""


def _frames(scratch: Path) -> str:
    """Where the child was, from faulthandler's file: the innermost frames of the thread that it was in."""
    written = _tail(scratch / child.FAULT_FILE).decode(errors="replace")
    frames = [line.strip() for line in written[max(0, written.rfind("Current thread")) :].splitlines()]
    frames = [line for line in frames if line.startswith("File ")]
    return f", in {'; '.join(frames[:2])}" if frames else ""


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read()
    except FileNotFoundError:
        return b""


def outcome_of(attempt: Attempt, cause: Cause, started: float, **facts: Any) -> Outcome:
    """An outcome of `attempt`, which began at `started`."""
    return Outcome(
        phase=attempt.phase,
        key=attempt.task.key,
        number=attempt.number,
        cause=cause,
        seconds=time.monotonic() - started,
        node=os.uname().nodename,
        **facts,
    )
