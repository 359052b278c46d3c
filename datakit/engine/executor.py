"""The interface between scheduling and execution: submit an attempt, wait for outcomes, report the number of slots.

The driver holds all policy (retries, order, progress, what counts as a failure). A backend only runs attempts and
reports accurately how each one ended. The backends are `engine/worker/local_executor.py` and
`engine/ray_backend/executor.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from datakit.engine.task import Preload, QuarantinedRecord, RecordRange, Task, TaskResult, Tolerance


class Cause(StrEnum):
    """The reason that an attempt ended."""

    DONE = "done"
    REFUSED = "refused"  # the task function raised an InputError: the user must act; a retry would not help
    ERROR = "error"  # any other exception in the task function
    MEMORY = "memory"  # it certainly exceeded its budget: we killed it, or an allocation failed
    CRASH = "crash"  # a signal, or an exit without a result
    HANG = "hang"  # no progress for too long
    KILLED = "killed"  # by an external SIGKILL that did not come from the kernel's out-of-memory killer
    QUARANTINE = "quarantine"  # more unusable records than max_quarantined allows
    INFRASTRUCTURE = "infrastructure"  # the worker, the node or the fork server died through no fault of the task
    CANCELLED = "cancelled"  # the run is being stopped


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a task, ready to be sent to another process or machine. `shared`: a path in the step's directory.

    more: further tasks to run in the same child, one after another, if each is too small for a child of its own.
    exclusive: no other attempt may compete for its memory; if its budget exceeds its CPUs' share of the node's memory,
    nothing else runs on the node. try_singly, skip, tolerance: see TaskContext. stage: for display.
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
    exclusive: bool = False
    try_singly: tuple[RecordRange, ...] = ()
    skip: tuple[QuarantinedRecord, ...] = ()
    tolerance: Tolerance = field(default_factory=Tolerance)
    stage: str = ""


@dataclass(frozen=True, slots=True)
class BatchedResult:
    """The result of one of the further tasks (`Attempt.more`) in a finished batch."""

    key: str
    result: TaskResult
    work_seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an attempt: a result, or a cause with a message and the type of the underlying exception.

    seconds: the attempt's time in its slot; work_seconds: time in the task function. peak_memory: the anonymous memory
    in addition to what was inherited from the fork server, which counts against the budget; peak_resident: all resident
    memory, including mapped files and inherited pages. in_progress: the records that the attempt was working on when it
    died. more: in a finished batch, the results after the first.
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
    in_progress: RecordRange | None = None
    more: tuple[BatchedResult, ...] = ()

    @classmethod
    def of(cls, attempt: Attempt, cause: Cause, **facts: Any) -> Outcome:
        """Build an outcome of `attempt`; `facts` are its other fields."""
        return cls(attempt.phase, attempt.task.key, attempt.number, cause, **facts)


class Verdict(StrEnum):
    """The driver's decision after an attempt."""

    DONE = "done"
    RETRY = "retry"
    PROPOSE = "propose"  # a record caused the failure: skip the record if that is allowed
    FAIL = "fail"  # only this task fails; the others continue
    REFUSE = "refuse"  # stop the whole step: the user must fix the cause


class Executor(Protocol):
    """Runs attempts. An executor belongs to one driver and is not thread-safe."""

    @property
    def slots(self) -> int:
        """The number of one-CPU attempts that can run at the same time. On a cluster it may change."""
        ...

    def submit(self, attempt: Attempt) -> None:
        """Start an attempt as soon as a slot is free. The driver keeps two to three attempts per slot submitted."""

    def wait(self, timeout: float) -> list[Outcome]:
        """Return the attempts that ended since the last call, waiting up to `timeout` seconds for the first."""
        ...

    def abandon(self) -> None:
        """Kill all running attempts and discard their outcomes. The executor stays usable."""

    def close(self) -> None:
        """Kill all running attempts and leave no process behind."""
