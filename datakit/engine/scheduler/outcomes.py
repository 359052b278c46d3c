"""Reads outcomes: classifies failed attempts, describes them for messages, and splits the outcome of a batch of tasks.

These are pure functions of outcomes. `phase_run.py` decides what follows from them.
"""

from __future__ import annotations

from dataclasses import replace

from datakit import errors
from datakit.engine.executor import Cause, Outcome
from datakit.engine.scheduler.retry_policy import TaskHistory
from datakit.errors import InputError, RefusedError, StorageError, counted


def refusal_class(outcome: Outcome) -> type[InputError]:
    """Return the class that `outcome.error_type` names if it is a kind of InputError, else InputError."""
    kind = getattr(errors, outcome.error_type, InputError)
    return kind if issubclass(kind, InputError) else InputError


def is_about_inputs(outcome: Outcome) -> bool:
    """Return True if the task refused its inputs, so that other tasks may refuse theirs, too."""
    return outcome.cause is Cause.REFUSED and issubclass(refusal_class(outcome), RefusedError)


def is_of_storage(outcome: Outcome) -> bool:
    """Return True if the attempt ended with a StorageError."""
    kind = getattr(errors, outcome.error_type, None)
    return isinstance(kind, type) and issubclass(kind, StorageError)


def describe_failure(history: TaskHistory, key: str = "max_quarantined") -> str:
    """Describe a task's failure: how its last attempt ended and, if known, which record caused it."""
    assert history.last is not None
    text = f"{history.last.cause} after {counted(history.attempts, 'attempt')}: {history.last.message}"
    if history.proposed is None:
        return text
    record = f"{history.proposed.file}:{history.proposed.position}"
    return f"{text}; record {record} caused the failure; set {key} to skip it"


def single_outcomes(outcome: Outcome) -> list[Outcome]:
    """Split a batch's outcome into one outcome per task. Each gets an equal share of the child process's overhead, CPU
    time and written bytes.
    """
    parts = [(outcome.key, outcome.result, outcome.work_seconds)]
    parts += [(done.key, done.result, done.work_seconds) for done in outcome.more]
    overhead = max(0.0, outcome.seconds - sum(work for _, _, work in parts)) / len(parts)
    whole = replace(
        outcome, cpu_seconds=outcome.cpu_seconds / len(parts), written=outcome.written // len(parts), more=()
    )
    return [
        replace(whole, key=key, result=result, work_seconds=work, seconds=work + overhead)
        for key, result, work in parts
    ]
