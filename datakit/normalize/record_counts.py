"""What a task found wrong with its input: counters, and the list of records that had to be left out.

Every record that is met is counted once in `records_in`, and everything that leaves is counted by reason, so that the
stage can prove that nothing is lost: see `conservation`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from datakit.engine.quarantine import SHOWN, complaint, unlisted
from datakit.engine.task import QuarantinedRecord, Tolerance
from datakit.errors import PartialError

PREFIX = "normalize/"
IN, OUT = "normalize/records_in", "normalize/records_out"
QUARANTINED = "normalize/quarantined"
ADDED = "normalize/transform_added"
LEAVING = (
    "normalize/blank",
    "normalize/duplicates",
    "normalize/where_dropped",
    "normalize/sample_dropped",
    "normalize/transform_dropped",
    QUARANTINED,
)
ENOUGH = 1000  # things left out: a small file that is bad may be the first one of a slice
NEXT_TO_ALL = 0.9  # the rest may be blank, and so be read whatever the recipe says
MENDED = ("normalize/invalid_utf8", "normalize/nul", "normalize/whitespace_runs")


@dataclass
class Findings:
    """Of one task. `tolerance`: how many records may be left out; a task that finds clearly more gives up.

    Of a number that is certain as soon as it is passed. A share is one of all records of the step, which no task knows:
    a bad file among a thousand good ones is well within it. So that is for the end to say, and a task gives up only
    where next to nothing of what it read can be used (`give_up`): that is a mistake in the recipe or another kind of
    file, and would be so for every other task.
    """

    tolerance: Tolerance
    counters: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys((IN, *LEAVING, *MENDED, ADDED), 0)))
    left_out: list[QuarantinedRecord] = field(default_factory=list)
    _unlisted: int = 0

    def met(self, records: int) -> None:
        """Records that were read."""
        self.counters[IN] += records

    def unreadable(self, file: str, position: int, reason: str, records: int = 1) -> None:
        """Something that could not be read at all; `records` is how many it holds, where that is known."""
        self.met(records)
        self.refused(file, position, reason, records)

    def refused(self, file: str, position: int, reason: str, records: int = 1) -> None:
        """A record that was read, and cannot be used."""
        self.counters[QUARANTINED] += records
        self.left_out.append(QuarantinedRecord(file, position, reason, records))
        self._unlisted += unlisted(self.left_out[-1:], self.tolerance)
        limit = self.tolerance.limit
        if (isinstance(limit, int) or not limit) and self._unlisted > limit + SHOWN:
            raise PartialError(complaint(self.left_out, limit, f"more than {limit + SHOWN}"))

    def give_up(self, enough: int = ENOUGH) -> None:
        """Raises PartialError where a share is allowed, `enough` things were left out, and next to nothing else met.

        To be called between blocks: inside one, its bad records may be met before its good ones. A row group that does
        not decode is one thing, however many records it holds.
        """
        limit, read = self.tolerance.limit, self.counters[IN]
        most = max(limit, NEXT_TO_ALL) * read
        if isinstance(limit, float) and len(self.left_out) >= enough and self._unlisted > most:
            raise PartialError(complaint(self.left_out, limit, f"{self._unlisted} of the first {read}"))


def conservation(counters: Mapping[str, int]) -> str | None:
    """None where every record is accounted for, else the equation that does not hold."""
    have = counters[IN] + counters[ADDED]
    gone = sum(counters[name] for name in LEAVING)
    if have == counters[OUT] + gone:
        return None
    terms = " + ".join(f"{counters[name]} {name.removeprefix(PREFIX)}" for name in (OUT, *LEAVING))
    return f"{counters[IN]} records_in + {counters[ADDED]} transform_added != {terms}"
