"""Decides, after each attempt, whether to retry (when, and with how much memory), skip a record, fail or stop.

Both backends share this policy. Each cause of failure has its own limit on attempts. The loss of a worker is not the
task's fault, so a task fails only after losing 20 workers. After an exception, a task is retried once. A task that runs
out of memory is retried with twice as much memory, and then with four times as much; during the last retry, no other
attempt may compete for the task's memory. A refusal (an InputError raised by datakit) must be resolved by the user, so
the task is not retried.

If a child dies (because of a crash, a hang or a lack of memory) while a batch of records is in progress, the next
attempt tries the records of that batch one by one, so that a second death identifies the record. If no batch is in
progress, or if each record of the batch passes alone (a writer may fail because of earlier input), the records of all
batches of the task are tried one by one. `quarantine.py` decides whether the identified record may be skipped. If it
may, the task starts over in whole batches: records are not tried one by one again until another death. A second bad
record in the same batch is thus identified after two more deaths. If a task still dies while it works on no particular
record, it fails; but if its input is a list that can be bisected, a bisection first identifies the bad entry.

If the first five failed tasks of a phase all have the same error and no task has succeeded, the phase stops: a typo
should cost seconds, not an hour.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from datakit.engine.executor import Attempt, Cause, Outcome, Verdict
from datakit.engine.task import ALL_RECORDS, QuarantinedRecord, RecordRange

# Maximum number of attempts that may end for each cause. Chosen, not measured: one retry shows whether a fault lasts;
# after a lack of memory, two retries get more memory; external causes get more tries.
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
MEMORY_STEP, MEMORY_LEVELS = 2, 3  # retries get 1, 2 or 4 times the declared memory
ALL_MEMORY = 1 << 50  # more than any machine has, so the attempt gets all memory that its machine has for attempts
NARROWINGS = 4  # maximum number of retries granted, regardless of the limits in TRIES, to identify a bad record
BREAKER_TASKS = 5  # the phase stops if this many tasks have failed with the same error and none has succeeded
BACKOFF_SECONDS = 0.5  # wait after the first lost worker, doubled for each further one
BACKOFF_CAP_SECONDS = 30.0


@dataclass
class TaskHistory:
    """The attempts at one task so far.

    causes: the number of attempts with each cause since a record was last skipped.
    memory_level: the number of times that the memory was doubled.
    try_singly: batches in which an attempt failed; their records are tried one by one.
    narrowed: the number of retries granted so far in order to identify a bad record.
    skip: the records to skip.
    proposed: the record that caused the last death, until it is skipped.
    """

    attempts: int = 0
    causes: Counter[Cause] = field(default_factory=Counter)
    last: Outcome | None = None
    memory_level: int = 0
    try_singly: list[RecordRange] = field(default_factory=list)
    narrowed: int = 0
    skip: list[QuarantinedRecord] = field(default_factory=list)
    proposed: QuarantinedRecord | None = None


def judge(history: TaskHistory, outcome: Outcome) -> Verdict:
    """Add an outcome to the task's history and decide what to do next."""
    history.attempts += 1
    history.last = outcome
    history.causes[outcome.cause] += 1
    if outcome.cause is Cause.DONE:
        return Verdict.DONE
    if outcome.cause is Cause.REFUSED:
        return Verdict.REFUSE
    if outcome.cause is Cause.CANCELLED:
        return Verdict.RETRY
    exhausted = history.causes[outcome.cause] >= TRIES[outcome.cause]
    verdict = _judge_death(history, outcome, exhausted) if outcome.cause in DEATHS else None
    if verdict is None:
        verdict = Verdict.FAIL if exhausted else Verdict.RETRY
    if verdict is Verdict.RETRY and outcome.cause is Cause.MEMORY:
        history.memory_level = min(history.memory_level + 1, MEMORY_LEVELS - 1)
    if outcome.cause in (*DEATHS, Cause.ERROR):
        _plan_single_tries(history, outcome)
    return verdict


def _plan_single_tries(history: TaskHistory, outcome: Outcome) -> None:
    """Make the next attempt try the records of the batch in progress one by one. If the child died with no batch in
    progress, or in a batch whose records had already been tried one by one, the next attempt tries all of the task's
    records one by one (if memory ran out, only when the next attempt gets four times the declared memory).
    """
    batch = outcome.in_progress
    if batch is not None and not _is_known(history, batch):
        history.try_singly.append(batch)
    elif outcome.cause in DEATHS and (outcome.cause is not Cause.MEMORY or history.memory_level == MEMORY_LEVELS - 1):
        history.try_singly.append(ALL_RECORDS)


def _judge_death(history: TaskHistory, outcome: Outcome, exhausted: bool) -> Verdict | None:
    """Decide, from the records in progress, what to do after a death. Return None if they do not suffice to decide."""
    batch = outcome.in_progress
    if batch is None or (outcome.cause is Cause.MEMORY and not exhausted):
        return None
    if batch.records == 1 and any((batch.file, batch.position) == (gone.file, gone.position) for gone in history.skip):
        return None  # the record had been skipped, so something else caused the death, e.g. the reader
    if batch.records == 1 and any(tried.may_contain(batch.file, batch.position) for tried in history.try_singly):
        history.proposed = QuarantinedRecord(batch.file, batch.position, outcome.cause.value)
        return Verdict.PROPOSE
    if ALL_RECORDS not in history.try_singly and history.narrowed < NARROWINGS:
        history.narrowed += 1
        return Verdict.RETRY
    return None


def _is_known(history: TaskHistory, batch: RecordRange | QuarantinedRecord) -> bool:
    return any((tried.file, tried.position) == (batch.file, batch.position) for tried in history.try_singly)


def may_repeat(history: TaskHistory, outcome: Outcome) -> bool:
    """Count an outcome that is neither a death nor a result, and thus reveals nothing about the input. Return True if a
    retry is allowed.
    """
    history.causes[outcome.cause] += 1
    return outcome.cause is Cause.CANCELLED or history.causes[outcome.cause] < TRIES[outcome.cause]


def skip_proposed(history: TaskHistory) -> None:
    """Add the record that caused the death to the records to skip, and let the task start over without it."""
    assert history.proposed is not None
    history.skip.append(history.proposed)
    history.proposed, history.memory_level, history.narrowed = None, 0, 0
    history.causes.clear()
    history.try_singly.clear()


def next_attempt(attempt: Attempt, history: TaskHistory, memory_bytes: int) -> Attempt:
    """Return the next attempt at a task for which the phase declares `memory_bytes` bytes of memory.

    A reader has to read past a record even if the attempt was told to skip it. If the last attempt ran out of memory at
    such a record, the next attempt may use all of a machine's memory. This applies only to the first time that the task
    runs out of memory after a record was skipped.
    """
    passes = history.memory_level == 1 and any(_is_known(history, gone) for gone in history.skip)
    return replace(
        attempt,
        number=history.attempts + 1,
        memory_bytes=ALL_MEMORY if passes else memory_bytes * MEMORY_STEP**history.memory_level,
        exclusive=passes or history.memory_level == MEMORY_LEVELS - 1,
        try_singly=tuple(history.try_singly),
        skip=tuple(history.skip),
        own_child=True,
    )


def backoff_seconds(history: TaskHistory) -> float:
    """Return the number of seconds to wait before the next attempt: 0, unless the last attempt lost its worker."""
    if history.last is None or history.last.cause is not Cause.INFRASTRUCTURE:
        return 0.0
    return min(BACKOFF_CAP_SECONDS, BACKOFF_SECONDS * 2 ** min(10, history.causes[Cause.INFRASTRUCTURE] - 1))


@dataclass
class Breaker:
    """Trips if the first `BREAKER_TASKS` failures of a phase have the same error and no task has succeeded."""

    done: int = 0
    failures: Counter[tuple[Cause, str]] = field(default_factory=Counter)

    def count(self, verdict: Verdict, outcome: Outcome) -> bool:
        """Count a task that succeeded or failed. Return True if the phase must stop."""
        if verdict is Verdict.DONE:
            self.done += 1
        elif verdict is Verdict.FAIL:
            self.failures[outcome.cause, outcome.error_type] += 1
        return self.done == 0 and len(self.failures) == 1 and self.failed >= BREAKER_TASKS

    @property
    def failed(self) -> int:
        """The number of failed tasks."""
        return sum(self.failures.values())
