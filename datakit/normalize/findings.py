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
MENDED = ("normalize/invalid_utf8", "normalize/nul", "normalize/whitespace_runs")


@dataclass
class Findings:
    """Of one task. `tolerance`: how many records may be left out; a task that finds clearly more gives up."""

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
        allowed = self.tolerance.allowed(self.counters[IN])
        if self._unlisted > allowed + SHOWN:
            raise PartialError(complaint(self.left_out, allowed, f"more than {allowed + SHOWN}"))


def conservation(counters: Mapping[str, int]) -> str | None:
    """None where every record is accounted for, else the equation that does not hold."""
    have = counters[IN] + counters[ADDED]
    gone = sum(counters[name] for name in LEAVING)
    if have == counters[OUT] + gone:
        return None
    terms = " + ".join(f"{counters[name]} {name.removeprefix(PREFIX)}" for name in (OUT, *LEAVING))
    return f"{counters[IN]} records_in + {counters[ADDED]} transform_added != {terms}"
