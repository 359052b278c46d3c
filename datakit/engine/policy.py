"""What to do when an attempt ends: pure decisions, one place for both backends.

Each cause has a budget of its own. Lost workers are not the task's fault and are tried 20 times; an exception is tried
twice (a second look is cheap, a third is superstition); memory goes up x1, x2, x4 and then gives up; a refusal (our own
InputError) is the user's to mend and stops the step at once. When the first tasks all fail with the same error the run
stops in seconds: a typo must not cost an hour.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum

from datakit.engine.executor import Attempt, Cause, Outcome

TRIES = {Cause.ERROR: 2, Cause.CRASH: 2, Cause.HANG: 2, Cause.MEMORY: 3, Cause.INFRASTRUCTURE: 20}
MEMORY_STEP = 2
BREAKER_TASKS = 5
BACKOFF_SECONDS = 0.5
BACKOFF_CAP_SECONDS = 30.0


class Verdict(StrEnum):
    """What follows an attempt."""

    DONE = "done"
    RETRY = "retry"
    FAIL = "fail"  # this task only; the others go on
    REFUSE = "refuse"  # the whole step, with the user's error


@dataclass
class TaskRecord:
    """What a task has gone through so far."""

    attempts: int = 0
    causes: Counter[Cause] = field(default_factory=Counter)
    last: Outcome | None = None


def judge(record: TaskRecord, outcome: Outcome) -> Verdict:
    """Enter an outcome in the task's record and decide what follows."""
    record.attempts += 1
    record.last = outcome
    record.causes[outcome.cause] += 1
    if outcome.cause is Cause.DONE:
        return Verdict.DONE
    if outcome.cause is Cause.REFUSED:
        return Verdict.REFUSE
    if outcome.cause is Cause.CANCELLED or record.causes[outcome.cause] < TRIES[outcome.cause]:
        return Verdict.RETRY
    return Verdict.FAIL


def next_attempt(attempt: Attempt, outcome: Outcome) -> Attempt:
    """The next try: one number up, and twice the memory if that is what it ran out of."""
    step = MEMORY_STEP if outcome.cause is Cause.MEMORY else 1
    return replace(attempt, number=attempt.number + 1, memory_bytes=attempt.memory_bytes * step)


def backoff_seconds(record: TaskRecord) -> float:
    """How long to wait before the next try: only lost workers need time to come back."""
    if record.last is None or record.last.cause is not Cause.INFRASTRUCTURE:
        return 0.0
    return min(BACKOFF_CAP_SECONDS, BACKOFF_SECONDS * 2 ** min(10, record.causes[Cause.INFRASTRUCTURE] - 1))


@dataclass
class Breaker:
    """Trips when the first tasks of a phase all failed alike and none was done."""

    done: int = 0
    failures: Counter[tuple[Cause, str]] = field(default_factory=Counter)

    def enter(self, verdict: Verdict, outcome: Outcome) -> bool:
        """Count a task that ended; True where the phase should stop."""
        if verdict is Verdict.DONE:
            self.done += 1
        elif verdict is Verdict.FAIL:
            self.failures[outcome.cause, outcome.error_type] += 1
        return self.done == 0 and len(self.failures) == 1 and sum(self.failures.values()) >= BREAKER_TASKS
