"""The seam between policy and machinery: submit an attempt, wait for any, say how many slots there are.

All policy (retries, order, progress, what is a failure) is above this line, in the driver; a backend only runs attempts
and reports honestly how each one ended. Two backends: `engine/worker/local_executor.py` and
`engine/ray_backend/executor.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from datakit.engine.task import Held, Preload, QuarantinedRecord, Task, TaskResult, Tolerance


class Cause(StrEnum):
    """How an attempt ended."""

    DONE = "done"
    REFUSED = "refused"  # the task function raised one of our own InputErrors: the user must act, no retry helps
    ERROR = "error"  # any other exception in the task function
    MEMORY = "memory"  # over its budget, proven: we killed it, or its allocator said so
    CRASH = "crash"  # a signal, or an exit without a result
    HANG = "hang"  # no progress for too long
    KILLED = "killed"  # SIGKILL from somebody else, and not from the kernel for lack of memory
    QUARANTINE = "quarantine"  # more records cannot be used than the recipe allows to leave out
    INFRASTRUCTURE = "infrastructure"  # the worker, the node or the fork server went away: not the task's doing
    CANCELLED = "cancelled"  # the run is being stopped


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a task, ready to cross a process or machine border. `shared` is a path relative to the step.

    more: further tasks, done one after another in the same child: for tasks that are too small for one each.
    alone: nothing may run beside it that could take from its memory: nothing at all on its node, where its budget is
    more than its CPUs' share of the node's memory. fine, skip, tolerance: see TaskContext. stage: for people to see.
    """

    task: Task
    phase: str
    step_directory: str
    number: int
    cpus: int
    memory_bytes: int
    preloads: tuple[Preload, ...] = ()
    shared: str | None = None
    hang_seconds: float | None = None
    more: tuple[Task, ...] = ()
    alone: bool = False
    fine: tuple[Held, ...] = ()
    skip: tuple[QuarantinedRecord, ...] = ()
    tolerance: Tolerance = field(default_factory=Tolerance)
    stage: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """A further task of an attempt that is done."""

    key: str
    result: TaskResult
    work_seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended: a result, or a cause with a message and the type of the exception behind it.

    seconds: the attempt's whole slot time; work_seconds: the part spent in the task function. peak_memory: what is
    counted against the budget, anonymous memory above what the fork server passed on; peak_resident: all that was
    resident, mapped files and inherited pages included. held: the records in hand when it died. more: of a batch whose
    tasks are all done, those after the first.
    """

    phase: str
    key: str
    number: int
    cause: Cause
    result: TaskResult | None = None
    message: str = ""
    error_type: str = ""
    peak_memory: int = 0
    peak_resident: int = 0
    budget: int = 0
    seconds: float = 0.0
    work_seconds: float = 0.0
    cpu_seconds: float = 0.0
    node: str = ""
    held: Held | None = None
    more: tuple[Finished, ...] = ()


class Verdict(StrEnum):
    """What follows an attempt."""

    DONE = "done"
    RETRY = "retry"
    PROPOSE = "propose"  # the record in hand is to blame: drop it, if that is allowed, and go on
    FAIL = "fail"  # this task only; the others go on
    REFUSE = "refuse"  # the whole step, with the user's error


class Executor(Protocol):
    """Runs attempts. Not thread safe: one driver owns it."""

    @property
    def slots(self) -> int:
        """How many one-CPU attempts run at the same time (a cluster's number may change)."""
        ...

    def submit(self, attempt: Attempt) -> None:
        """Start an attempt as soon as a slot is free. The driver keeps a window of two to three times the slots."""
        ...

    def wait(self, timeout: float) -> list[Outcome]:
        """The attempts that ended since the last call; waits up to `timeout` seconds for the first."""
        ...

    def abandon(self) -> None:
        """Kill what runs and forget it: no outcome of it comes any more. The executor stays usable."""
        ...

    def close(self) -> None:
        """Kill what runs, and leave no process."""
        ...
