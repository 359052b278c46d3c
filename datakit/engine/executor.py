"""Defines the interface between scheduling and execution: attempts, their outcomes, and the methods of a backend.

The driver makes all decisions (what runs next, what is retried, what counts as a failure) and reports the run's
progress. A backend only runs attempts and reports accurately how each one ended. The backends are
`worker/local_executor.py` and `ray_backend/executor.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from datakit.engine.disk_limits import DiskLimits
from datakit.engine.task import Preload, QuarantinedRecord, RecordRange, Task, TaskResult, Tolerance
from datakit.redaction import redacted

# The error type of an attempt whose fork server died while starting, if the server itself was the cause.
BOOT_DEATH = "BootDeath"


class Cause(StrEnum):
    """The reason why an attempt ended."""

    DONE = "done"
    REFUSED = "refused"  # the task function raised an InputError: the user must act, and a retry would not help
    ERROR = "error"  # the task function raised an exception of another kind
    MEMORY = "memory"  # the attempt ran out of memory: we or the kernel killed it, or an allocation failed
    CRASH = "crash"  # a signal other than SIGKILL ended the child, or the child exited without a result
    HANG = "hang"  # the attempt made no progress for too long
    KILLED = "killed"  # the child got a SIGKILL that neither we nor the kernel's out-of-memory killer sent
    QUARANTINE = "quarantine"  # the task found more unusable records than max_quarantined allows
    INFRASTRUCTURE = "infrastructure"  # the worker, the node or the fork server died, through no fault of the task
    CANCELLED = "cancelled"  # we killed the attempt because the run is being stopped


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a task, ready to be sent to another process or machine.

    shared: the path, in the step's directory, of the data that all tasks of the phase share.
    more: further tasks to run in the same child, one after another, when each is too small for a child of its own.
    exclusive: True if no other attempt may compete for this attempt's memory. Such an attempt runs alone on its node if
    its budget exceeds `cpus` times the node's memory per slot.
    try_singly, skip: see TaskContext. tolerance: see Phase. stage: the name of the stage, for display.
    limits: how much each task may write, and how much disk space must stay free.
    own_child: True if the attempt follows a failed one. It then runs in a child that runs nothing else.
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
    limits: DiskLimits = field(default_factory=DiskLimits)
    own_child: bool = False


@dataclass(frozen=True, slots=True)
class BatchedResult:
    """The result of a further task (`Attempt.more`) of a finished batch."""

    key: str
    result: TaskResult
    work_seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an attempt: a result, or a cause with a message and the type of the underlying exception.

    seconds: the time that the attempt spent in its slot. work_seconds: the time spent in the task function.
    peak_memory: the peak, in bytes, of anonymous memory beyond that inherited from the fork server (limit: `budget`).
    peak_resident: the peak, in bytes, of all resident memory, including mapped files and inherited pages.
    in_progress: the records that the attempt was working on when it died.
    written: the number of bytes that the attempt has written to files of any kind.
    more: for a finished batch, the results of all tasks after the first.
    step_directory: the step's directory. It tells the outcomes of steps apart that run at the same time.
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
    written: int = 0
    more: tuple[BatchedResult, ...] = ()
    step_directory: str = ""

    @classmethod
    def of(cls, attempt: Attempt, cause: Cause, **facts: Any) -> Outcome:
        """Build an outcome of `attempt`; `facts` are the outcome's other fields. The message is redacted, because the
        ledger, the events and `partial.json` store it.
        """
        facts["message"] = redacted(facts.get("message", ""))
        step = attempt.step_directory
        return cls(attempt.phase, attempt.task.key, attempt.number, cause, step_directory=step, **facts)


class Verdict(StrEnum):
    """The driver's decision after an attempt has ended."""

    DONE = "done"
    RETRY = "retry"
    PROPOSE = "propose"  # the record that caused the failure has been identified: skip it if the limit allows that
    FAIL = "fail"  # only this task fails; the others continue
    REFUSE = "refuse"  # the user must fix the cause: the step fails, at once or after the other inputs have been tried


class Executor(Protocol):
    """Runs attempts. An executor belongs to one driver and is not thread-safe."""

    @property
    def slots(self) -> int:
        """The number of one-CPU attempts that can run at the same time. On a cluster, this number may change."""
        ...

    @property
    def compiling(self) -> bool:
        """True while attempts wait because kernels are being compiled."""
        return False

    def written(self, step_directory: str) -> int:
        """Return the number of bytes that the running attempts of this step have written so far."""
        return 0

    def prepare(self, preloads: tuple[Preload, ...]) -> None:
        """Begin to load these preloads before attempts need them, if the backend can. Returns immediately."""

    def submit(self, attempt: Attempt) -> None:
        """Queue an attempt to start once a slot is free. The driver keeps at most two submitted attempts per slot."""

    def wait(self, timeout: float) -> list[Outcome]:
        """Wait up to `timeout` seconds for an attempt to end; return all outcomes since the last call."""
        ...

    def cancel(self, *step_directories: str) -> None:
        """Kill the running attempts of these steps, drop their queued ones, and discard all their outcomes. Attempts of
        other steps continue.
        """

    def close(self) -> None:
        """Kill all running attempts and leave no process behind."""
