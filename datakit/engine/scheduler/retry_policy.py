"""What to do when an attempt ends: pure decisions, one place for both backends.

Each cause has a budget of its own. Lost workers are not the task's fault and are tried 20 times; an exception is tried
twice (a second look is cheap, a third is superstition); memory goes up x1, x2, x4, the last with nothing beside it; a
refusal (our own InputError) is the user's to mend and stops the step at once.

A child that dies (crash, hang, memory) with records in hand is tried again in fine mode: the records of that batch one
by one, so the second death names one. Where there were none in hand, or each of them passes alone (a writer may choke
on what it was given a while ago), all batches of the task are tried so. The record that is named is *proposed*: whether
it may be dropped is for `quarantine.py` to say. After it is dropped all begins anew, in whole batches: a second record
of the same batch needs two deaths of its own, and no record is worked on twice for nothing. A task that dies without a
record in hand all the same fails; where its input is a list that can be halved, halves are tried first, to name the
entry.

When the first tasks all fail with the same error the run stops in seconds: a typo must not cost an hour.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from datakit.engine.executor import Attempt, Cause, Outcome, Verdict
from datakit.engine.task import EVERYTHING, Held, QuarantinedRecord

TRIES = {
    Cause.ERROR: 2,
    Cause.CRASH: 2,
    Cause.HANG: 2,
    Cause.MEMORY: 3,
    Cause.KILLED: 5,
    Cause.INFRASTRUCTURE: 20,
    Cause.QUARANTINE: 1,
}
DEATHS = (Cause.CRASH, Cause.HANG, Cause.MEMORY)
MEMORY_STEP, MEMORY_LEVELS = 2, 3
NARROWINGS = 4  # different batches that a task may die at before one record is named
BREAKER_TASKS = 5
BACKOFF_SECONDS = 0.5
BACKOFF_CAP_SECONDS = 30.0


@dataclass
class TaskRecord:
    """What a task has gone through so far; `causes` since a record of it was dropped.

    level: how often memory was raised. fine: batches that were in hand at a death. skip: records that are dropped.
    """

    attempts: int = 0
    causes: Counter[Cause] = field(default_factory=Counter)
    last: Outcome | None = None
    level: int = 0
    fine: list[Held] = field(default_factory=list)
    narrowed: int = 0
    skip: list[QuarantinedRecord] = field(default_factory=list)
    proposed: QuarantinedRecord | None = None


def judge(record: TaskRecord, outcome: Outcome) -> Verdict:
    """Enter an outcome in the task's record and decide what follows."""
    record.attempts += 1
    record.last = outcome
    record.causes[outcome.cause] += 1
    if outcome.cause is Cause.DONE:
        return Verdict.DONE
    if outcome.cause is Cause.REFUSED:
        return Verdict.REFUSE
    if outcome.cause is Cause.CANCELLED:
        return Verdict.RETRY
    exhausted = record.causes[outcome.cause] >= TRIES[outcome.cause]
    verdict = _judge_death(record, outcome, exhausted) if outcome.cause in DEATHS else None
    if verdict is None:
        verdict = Verdict.FAIL if exhausted else Verdict.RETRY
    if verdict is Verdict.RETRY and outcome.cause is Cause.MEMORY:
        record.level = min(record.level + 1, MEMORY_LEVELS - 1)
    if outcome.cause in (*DEATHS, Cause.ERROR):
        _look_closer(record, outcome)
    return verdict


def _look_closer(record: TaskRecord, outcome: Outcome) -> None:
    """What the next attempt takes one by one: the batch in hand; all, where that says nothing."""
    held = outcome.held
    if held is not None and not _is_known(record, held):
        record.fine.append(held)
    elif outcome.cause in DEATHS and (outcome.cause is not Cause.MEMORY or record.level == MEMORY_LEVELS - 1):
        record.fine.append(EVERYTHING)


def _judge_death(record: TaskRecord, outcome: Outcome, exhausted: bool) -> Verdict | None:
    """Whether the records in hand decide; None where there are none, or none that could be told apart."""
    held = outcome.held
    if held is None or (outcome.cause is Cause.MEMORY and not exhausted):
        return None
    if held.records == 1 and any((held.file, held.position) == (gone.file, gone.position) for gone in record.skip):
        return None  # it kills although nobody works on it any more: whoever reads it does, or something else
    if held.records == 1 and any(batch.holds(held.file, held.position) for batch in record.fine):
        record.proposed = QuarantinedRecord(held.file, held.position, outcome.cause.value)
        return Verdict.PROPOSE
    if EVERYTHING not in record.fine and record.narrowed < NARROWINGS:
        record.narrowed += 1
        return Verdict.RETRY
    return None


def _is_known(record: TaskRecord, held: Held) -> bool:
    return any((batch.file, batch.position) == (held.file, held.position) for batch in record.fine)


def may_go_on(record: TaskRecord, outcome: Outcome) -> bool:
    """Enter an end that says nothing of the records (no death, nothing done); whether the same may be tried again."""
    record.causes[outcome.cause] += 1
    return outcome.cause is Cause.CANCELLED or record.causes[outcome.cause] < TRIES[outcome.cause]


def drop_proposed(record: TaskRecord) -> None:
    """The record in hand may be left out: the task begins anew without it."""
    assert record.proposed is not None
    record.skip.append(record.proposed)
    record.proposed, record.level, record.narrowed = None, 0, 0
    record.causes.clear()
    record.fine.clear()


def next_attempt(attempt: Attempt, record: TaskRecord, memory_bytes: int) -> Attempt:
    """The next try at a task whose budget is `memory_bytes`."""
    return replace(
        attempt,
        number=record.attempts + 1,
        memory_bytes=memory_bytes * MEMORY_STEP**record.level,
        alone=record.level == MEMORY_LEVELS - 1,
        fine=tuple(record.fine),
        skip=tuple(record.skip),
    )


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
        return self.done == 0 and len(self.failures) == 1 and self.failed >= BREAKER_TASKS

    @property
    def failed(self) -> int:
        """How many tasks failed."""
        return sum(self.failures.values())
