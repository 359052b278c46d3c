"""Counts the records that a task reads, removes, repairs or quarantines; fails a task that has quarantined too many;
and checks that no record is lost. Every record read is counted in `records_in`, and every record that does not reach
the output is counted under the reason for its removal, so the stage can prove that none is lost.
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
LIMITED = "normalize/limit_dropped"  # counted only if the source has a limit
# Records of web archives that are not meant to become documents (`readers/web/messages.py`)
OTHER_RECORD_TYPE = "normalize/other_record_type"
OTHER_STATUS = "normalize/other_status"
OTHER_MEDIA_TYPE = "normalize/other_media_type"
NOT_PAGES = (OTHER_RECORD_TYPE, OTHER_STATUS, OTHER_MEDIA_TYPE)  # counted only in sources with such records
OPTIONAL = (LIMITED, *NOT_PAGES)
REMOVED = (
    "normalize/missing",
    "normalize/blank",
    "normalize/duplicates",
    "normalize/where_dropped",
    "normalize/sample_dropped",
    LIMITED,
    "normalize/transform_dropped",
    QUARANTINED,
)
_ALWAYS = (IN, *(name for name in REMOVED if name != LIMITED))
REPAIRED = ("normalize/invalid_utf8", "normalize/nul", "normalize/whitespace_runs")
# Before the end of its slice, a task gives up only after this many quarantined entries, since perhaps only its first
# file is bad.
ENOUGH = 1000
# A task gives up only if more than this share of its records is unusable. The share is below 1, since a file of the
# wrong kind may have a few usable lines.
NEARLY_ALL = 0.9


@dataclass
class RecordCounts:
    """The counts of one task.

    tolerance: the limit on the number or share of quarantined records. If the limit is a number of records, a task
    fails as soon as it exceeds the limit by more than `SHOWN` records. If the limit is a share, it applies to all
    records of the step and is checked when the step ends, so that one bad file among a thousand good ones is allowed.
    Until then, a task fails only if almost none of the records it has read are usable (`give_up_if_hopeless`). In that
    case, the recipe is wrong or the files are of the wrong kind, and every other task would fail in the same way.
    """

    tolerance: Tolerance
    counters: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys((*_ALWAYS, *REPAIRED, ADDED), 0)))
    quarantined: list[QuarantinedRecord] = field(default_factory=list)
    _unlisted: int = 0

    def add_read(self, records: int) -> None:
        """Add `records` to the number of records read."""
        self.counters[IN] += records

    def not_page(self, counter: str) -> None:
        """Count a record that was read and left out. counter: one of NOT_PAGES."""
        self.add_read(1)
        self.counters[counter] += 1

    def unreadable(self, file: str, position: int, reason: str, records: int = 1) -> None:
        """Quarantine input that could not be read. `records` is the number of records in it, or 1 if unknown."""
        self.add_read(records)
        self.unusable(file, position, reason, records)

    def unusable(self, file: str, position: int, reason: str, records: int = 1) -> None:
        """Quarantine records that were already counted as read. Raises PartialError if too many are quarantined."""
        self.counters[QUARANTINED] += records
        self.quarantined.append(QuarantinedRecord(file, position, reason, records))
        self._unlisted += unlisted(self.quarantined[-1:], self.tolerance)
        limit = self.tolerance.limit
        if (isinstance(limit, int) or not limit) and self._unlisted > limit + SHOWN:
            raise PartialError(complaint(self.quarantined, limit, f"more than {limit + SHOWN}", self.tolerance))

    def give_up_if_hopeless(self, enough: int = ENOUGH) -> None:
        """Raise PartialError if the limit is a share and nearly all records are in quarantine.

        The error is raised only if at least `enough` entries are in quarantine. Call this between chunks, because
        within a chunk, bad records may be counted before good ones. A row group that fails to decode is one entry,
        whatever its size.
        """
        limit, read = self.tolerance.limit, self.counters[IN]
        most = max(limit, NEARLY_ALL) * read
        if isinstance(limit, float) and len(self.quarantined) >= enough and self._unlisted > most:
            raise PartialError(
                complaint(self.quarantined, limit, f"{self._unlisted} of the first {read}", self.tolerance)
            )


def left_out(counters: Mapping[str, int]) -> int:
    """Return how many records did not become documents, for all reasons together."""
    required = sum(counters[name] for name in REMOVED if name not in OPTIONAL)
    return required + sum(counters.get(name, 0) for name in OPTIONAL)


def conservation(counters: Mapping[str, int]) -> str | None:
    """Return None if every record is accounted for, else the equation that is violated."""
    removed = left_out(counters)
    if counters[IN] + counters[ADDED] == counters[OUT] + removed:
        return None
    names = (OUT, *(name for name in (*REMOVED, *NOT_PAGES) if name not in OPTIONAL or name in counters))
    terms = " + ".join(f"{counters[name]} {name.removeprefix(PREFIX)}" for name in names)
    return f"{counters[IN]} records_in + {counters[ADDED]} transform_added != {terms}"
