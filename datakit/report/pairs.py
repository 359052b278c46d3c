"""Chooses some removed near duplicates of a report, and compares each with the document for which it was removed.

The pairs are spread over the range of similarities, from the least similar one to the most similar one, so that a wrong
threshold can be seen. They are chosen from at most MOST_PARTITIONS partitions of each dedup step, and the choice is the
same every time. This is the only part of a report that contains text of documents; it is made only if the user asks for
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar

from datakit.errors import UsageError
from datakit.lineage.graph import upstream_first
from datakit.pipeline.fate.behind import Behind, Finished
from datakit.pipeline.fate.removals import COLUMNS, FUZZY, Comparison, Removal, compared
from datakit.report.figures import Pair, Section
from datakit.report.subject import Subject
from datakit.storage.manifest import Partition
from datakit.storage.parquet import iterate_shard
from datakit.text.word_difference import Stretch, stretches

REST = " [... the rest is not shown]"
NONE = "No near duplicates were removed."
T = TypeVar("T")
PAIRS = 10
MOST_PARTITIONS = 40
MOST_ROWS = 50  # near duplicates read per partition
MOST_CHARACTERS = 3000  # characters of each text that are shown
INTRO = (
    "Near duplicates that were removed, each beside the document for which it was removed, from the least similar pair "
    "to the most similar one. Words that differ are marked."
)


def pairs_section(subject: Subject) -> Section:
    """Return the section with the pairs. Raises UsageError if the step that holds their texts is missing."""
    dedups = (Finished(step.directory, step.manifest) for step in subject.found("dedup") if step.manifest is not None)
    found = tuple(pair for dedup in dedups for pair in _pairs(dedup))
    return Section("pairs", "Removed pairs", INTRO if found else NONE, pairs=found)


def _pairs(dedup: Finished) -> Iterator[Pair]:
    near = sorted(_near(dedup), key=lambda removal: (removal.jaccard, removal.id))
    upstream = upstream_first(dedup.directory, dedup.manifest)
    finished = tuple(Finished(step.directory, step.manifest) for step in upstream if step.manifest is not None)
    behind = Behind(dedup, finished, ())
    for removal in _spread(near, PAIRS):
        for source in (removal.source, removal.representative_source):
            if source not in behind.normalized:
                raise UsageError(
                    f"the texts of source {source!r} are gone: the normalize step that {dedup.directory} read is "
                    "missing; make the report without --show-text"
                )
        yield _pair(compared(behind, dedup, removal))


def _near(dedup: Finished) -> Iterator[Removal]:
    """Yield near duplicates: at most MOST_ROWS from each of MOST_PARTITIONS partitions."""
    filled = [partition for partition in dedup.manifest.partitions if partition.rows]
    for partition in _spread(filled, MOST_PARTITIONS):
        yield from islice(_rows(dedup, partition), MOST_ROWS)


def _rows(dedup: Finished, partition: Partition) -> Iterator[Removal]:
    for table in iterate_shard(dedup.url(partition.path), COLUMNS):
        for row in table.to_pylist():
            if row["reason"] == FUZZY:
                yield Removal(partition.source, **row)


def _spread(values: Sequence[T], most: int) -> list[T]:
    """Return at most `most` of the values, evenly spread, always with the first and the last one."""
    if len(values) <= most:
        return list(values)
    return [values[number * (len(values) - 1) // (most - 1)] for number in range(most)]


def _pair(found: Comparison) -> Pair:
    removal = found.removal
    return Pair(
        title=f"{found.measure} {found.similarity:.4f} (threshold {found.threshold})",
        removed=f"removed: {removal.source}, {removal.id}",
        retained=f"retained: {removal.representative_source}, {removal.representative_id}",
        stretches=tuple(_limited(stretches(found.text, found.representative_text))),
    )


def _limited(found: Iterator[Stretch]) -> Iterator[tuple[bool, str, str]]:
    """Yield the stretches up to MOST_CHARACTERS characters of either text; then, instead of the rest, a note."""
    room = MOST_CHARACTERS
    for stretch in found:
        yield stretch.equal, stretch.left[:room], stretch.right[:room]
        room -= max(len(stretch.left), len(stretch.right))
        if room <= 0:
            yield True, REST, REST
            return
