"""Decides which unusable records a phase may skip under `max_quarantined`, and composes the message if there are too
many.

Unreadable records and records that kill their task share one limit. A record that kills its task is skipped
immediately if the limit allows this; otherwise, its task waits until all other tasks are done. A limit given as a
number is known from the start. A limit given as a share allows more records to be skipped as more records are read; the
number of records in unfinished tasks is estimated from the finished tasks. The count at the end of the phase is exact,
so the result does not depend on the order of the tasks: either all unusable records fit within the limit, or the step
ends as partial.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from datakit.engine.task import QuarantinedRecord, TaskResult, Tolerance
from datakit.errors import PartialError, RecipeError, counted
from datakit.printable import one_line
from datakit.toml_config import key

MAX_QUARANTINED = key(
    "How many records may be left out because they cannot be used: a number (`10`) or a share (`0.001`).", 0.001
)
SHOWN = 20  # maximum number of records listed in a message


class Allowance:
    """Keeps track of how many records a running phase may still skip."""

    def __init__(self, tolerance: Tolerance, done: Iterable[TaskResult] = ()) -> None:
        """`done`: the results of tasks that finished in an earlier run."""
        self._tolerance = tolerance
        self._records = self._skipped = self._done = 0
        self._granted: dict[str, list[QuarantinedRecord]] = {}  # key of an unfinished task -> the records it may skip
        for result in done:
            self.task_done("", result)

    def task_done(self, key: str, result: TaskResult) -> None:
        """Count the records that a finished task skipped, in place of the records that it had been granted."""
        self._done += 1
        self._records += result.records
        self._skipped += unlisted(result.quarantined, self._tolerance)
        self._granted.pop(key, None)

    def grants(self, key: str, record: QuarantinedRecord, unfinished: int = 0) -> bool:
        """If this task may skip the record, count the record and return True. `unfinished` is the number of unfinished
        tasks; pass it only when no other task is running.
        """
        granted = sum(unlisted(records, self._tolerance) for records in self._granted.values())
        room = self._allowed(unfinished) - self._skipped - granted
        if unlisted([record], self._tolerance) > room:
            return False
        self._granted.setdefault(key, []).append(record)
        return True

    def _allowed(self, unfinished: int) -> int:
        if unfinished and not self._done and isinstance(self._tolerance.limit, float):
            # No task is done, so the total number of records, of which the limit is a share, cannot be estimated yet.
            return SHOWN if self._tolerance.limit else 0
        expected = unfinished * self._records / max(1, self._done)
        return self._tolerance.allowed(self._records + round(expected))


def check_limit(limit: int | float) -> None:
    """Raise RecipeError if `max_quarantined` is neither a number of records nor a share of the records."""
    if not 0 <= limit <= (1 if isinstance(limit, float) else math.inf):  # this also rejects NaN
        raise RecipeError(f"max_quarantined is {limit}; it must be a number of records, or a share from 0.0 to 1.0")


def unlisted(records: Sequence[QuarantinedRecord], tolerance: Tolerance) -> int:
    """Return how many of the skipped records `tolerance.listed` does not contain."""
    return sum(record.records for record in _unlisted(records, tolerance))


def _unlisted(records: Sequence[QuarantinedRecord], tolerance: Tolerance) -> list[QuarantinedRecord]:
    listed = set(tolerance.listed)
    return [record for record in records if f"{record.file}:{record.position}" not in listed]


def require_allowed(tolerance: Tolerance, results: Sequence[TaskResult]) -> None:
    """Raise PartialError if the tasks of a phase skipped more records than the tolerance allows."""
    skipped = [record for result in results for record in result.quarantined]
    allowed = tolerance.allowed(sum(result.records for result in results))
    if unlisted(skipped, tolerance) > allowed:
        raise PartialError(complaint(skipped, allowed, unlisted(skipped, tolerance), tolerance))


def complaint(
    skipped: Sequence[QuarantinedRecord], allowed: int | float, count: int | str, tolerance: Tolerance
) -> str:
    """Return the message for too many unusable records. The message shows up to SHOWN records that are not listed in
    `quarantine`, states how many are listed there, and gives the remedies. count: the number of records that are not
    listed there, or a phrase such as "more than 30".
    """
    others = _unlisted(skipped, tolerance)
    first = "\n".join(f"  {one_line(record.file)}:{record.position}: {record.reason}" for record in others[:SHOWN])
    listed = sum(record.records for record in skipped) - sum(record.records for record in others)
    more = f" in addition to the {listed:,} listed in `quarantine`" if listed else ""
    records = counted(count, "record") if isinstance(count, int) else f"{count} records"
    return (
        f"{records}{more} cannot be used, but max_quarantined allows {allowed}; the first of them (file:position, "
        f"where a position is a byte offset in the uncompressed file, or a row in a Parquet or Arrow file):\n{first}\n"
        f"fix or exclude these files, or set {tolerance.key} (a number of records, or a share such as 0.001) to skip "
        "the records"
    )
