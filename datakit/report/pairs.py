"""Chooses some removed near duplicates of a report, and compares each with the document for which it was removed.

The pairs are spread over the range of similarities, from the least similar one to the most similar one, so that a wrong
threshold can be seen. They are chosen from at most MOST_PARTITIONS partitions, always in the same way. This is the only
part of a report that contains text of documents; it is made only if the user asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar

from datakit.pipeline.fate.behind import Behind, Finished
from datakit.pipeline.fate.removals import COLUMNS, FUZZY, Comparison, Removal, compared
from datakit.report.figures import Pair, Section
from datakit.report.subject import Subject
from datakit.storage.manifest import Partition
from datakit.storage.parquet import iterate_shard
from datakit.text.word_difference import Stretch, stretches

T = TypeVar("T")
PAIRS = 10
MOST_PARTITIONS = 40
MOST_ROWS = 50  # near duplicates read per partition
MOST_CHARACTERS = 3000  # of each text that are shown
INTRO = (
    "Near duplicates that were removed, each beside the document for which it was removed, from the least similar pair "
    "to the most similar one. Words that differ are marked."
)


def pairs_section(subject: Subject) -> Section | None:
    """Return the section with the pairs, or None if the report covers no near duplicates."""
    finished = tuple(Finished(step.directory, step.manifest) for step in subject.steps if step.manifest is not None)
    dedups = [step for step in finished if step.manifest.stage == "dedup"]
    found = [pair for dedup in dedups for pair in _pairs(Behind(dedup, finished, ()), dedup)]
    return Section("pairs", "Removed pairs", INTRO, pairs=tuple(found)) if found else None


def _pairs(behind: Behind, dedup: Finished) -> Iterator[Pair]:
    near = sorted(_near(dedup), key=lambda removal: (removal.jaccard, removal.id))
    for removal in _spread(near, PAIRS):
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
    """Yield stretches up to MOST_CHARACTERS on either side."""
    shown = 0
    for stretch in found:
        left = MOST_CHARACTERS - shown
        if left <= 0:
            yield True, " [... the rest is not shown]", " [... the rest is not shown]"
            return
        yield stretch.equal, stretch.left[:left], stretch.right[:left]
        shown += max(len(stretch.left), len(stretch.right))
