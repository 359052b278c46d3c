"""Which records may be left out: one count for those that a task met and could not read, and those that killed it.

A record that kills is granted at once while there is room; where there is none yet, its task waits until all others are
done. With a number the room is known from the start; with a share it grows with the records that are read, and what the
last tasks will read is estimated from the others. At the end the count is exact. So what is left out does not depend on
the order in which tasks ran: either all of it fits, or the step ends partial.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from datakit.engine.task import QuarantinedRecord, TaskResult, Tolerance
from datakit.errors import PartialError, RecipeError

SHOWN = 20


class Allowance:
    """The room of one phase while it runs."""

    def __init__(self, tolerance: Tolerance, done: Iterable[TaskResult] = ()) -> None:
        """`done`: results that an earlier run left."""
        self._tolerance = tolerance
        self._records = self._left_out = self._done = 0
        self._granted: dict[str, list[QuarantinedRecord]] = {}  # of tasks that are not done yet
        for result in done:
            self.enter("", result)

    def enter(self, key: str, result: TaskResult) -> None:
        """A task is done: what it left out holds its grants."""
        self._done += 1
        self._records += result.records
        self._left_out += unlisted(result.quarantined, self._tolerance)
        self._granted.pop(key, None)

    def grants(self, key: str, record: QuarantinedRecord, unfinished: int = 0) -> bool:
        """Whether this task may leave this record out; if so, it is counted.

        unfinished: where nothing else runs any more, how many tasks are not done.
        """
        mine = self._granted.get(key, [])
        pending = sum(unlisted(records, self._tolerance) for records in self._granted.values())
        room = self._allowed(unfinished) - self._left_out - pending
        if unlisted([record], self._tolerance) > room:
            return False
        self._granted[key] = [*mine, record]
        return True

    def _allowed(self, unfinished: int) -> int:
        if unfinished and not self._done and isinstance(self._tolerance.limit, float):
            return SHOWN if self._tolerance.limit else 0  # a share of what nobody knows yet
        expected = unfinished * self._records / max(1, self._done)
        return self._tolerance.allowed(self._records + round(expected))


def check_limit(limit: int | float) -> None:
    """Raises RecipeError for a max_quarantined that is neither a number of records nor a share of them."""
    if not 0 <= limit <= (1 if isinstance(limit, float) else math.inf):  # a nan is neither
        raise RecipeError(f"max_quarantined is {limit}; it is a number of records, or a share from 0.0 to 1.0")


def unlisted(records: Sequence[QuarantinedRecord], tolerance: Tolerance) -> int:
    """How many of these count."""
    listed = set(tolerance.listed)
    return sum(record.records for record in records if f"{record.file}:{record.position}" not in listed)


def require_allowed(tolerance: Tolerance, results: Sequence[TaskResult]) -> None:
    """Raises PartialError where the tasks of a phase have left out more records than that."""
    left_out = [record for result in results for record in result.quarantined]
    allowed = tolerance.allowed(sum(result.records for result in results))
    if unlisted(left_out, tolerance) > allowed:
        raise PartialError(complaint(left_out, allowed, sum(record.records for record in left_out)))


def complaint(left_out: Sequence[QuarantinedRecord], allowed: int | float, count: int | str) -> str:
    """The message for too many unusable records: the first of them, by file and position, and what to do."""
    first = "\n".join(f"  {record.file}:{record.position}: {record.reason}" for record in left_out[:SHOWN])
    return (
        f"{count} records cannot be used, and max_quarantined allows {allowed}; the first of them (file:position, in "
        f"uncompressed bytes or, in Parquet and Arrow files, in rows):\n{first}\n"
        "mend or exclude these files, or set max_quarantined to go on without them"
    )
