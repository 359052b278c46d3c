"""What a task found wrong with its input: counters, and the list of records that had to be left out.

Every record that is met is counted once in `records_in`, and everything that leaves is counted by reason, so that the
stage can prove that nothing is lost: see `conservation`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from datakit.engine.task import QuarantinedRecord
from datakit.errors import UnreadableError

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
SHOWN = 20


@dataclass
class Findings:
    """Of one task. `tolerated`: how many records may be left out; a task that finds clearly more gives up."""

    tolerated: int
    counters: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys((IN, *LEAVING, *MENDED, ADDED), 0)))
    left_out: list[QuarantinedRecord] = field(default_factory=list)

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
        self.left_out.append(QuarantinedRecord(file, position, reason))
        if self.counters[QUARANTINED] > self.tolerated + SHOWN:
            raise UnreadableError(complaint(self.left_out, self.tolerated, f"more than {self.tolerated + SHOWN}"))


def complaint(left_out: Sequence[QuarantinedRecord], tolerated: int, count: int | str) -> str:
    """The message for too many unusable records: the first of them, by file and position, and what to do."""
    first = "\n".join(f"  {record.file}:{record.position}: {record.reason}" for record in left_out[:SHOWN])
    return (
        f"{count} records cannot be used, and max_quarantined allows {tolerated}; the first of them (file:position, in "
        f"uncompressed bytes or, in Parquet and Arrow files, in rows):\n{first}\n"
        "mend or exclude these files, or set max_quarantined to go on without them"
    )


def conservation(counters: Mapping[str, int]) -> str | None:
    """None where every record is accounted for, else the equation that does not hold."""
    have = counters[IN] + counters[ADDED]
    gone = sum(counters[name] for name in LEAVING)
    if have == counters[OUT] + gone:
        return None
    terms = " + ".join(f"{counters[name]} {name.removeprefix(PREFIX)}" for name in (OUT, *LEAVING))
    return f"{counters[IN]} records_in + {counters[ADDED]} transform_added != {terms}"
