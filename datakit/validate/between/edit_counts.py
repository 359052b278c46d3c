"""Checks that the counts of edits add up, and computes how edits change the size of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from datakit.storage import urls
from datakit.storage.manifest import Manifest, Partition
from datakit.storage.selection.edits import FOLDER, edits_path

Equation = tuple[str, object, str, object]  # (name, value, name, value): two values that must be equal


def growths(select: Manifest) -> dict[str, int]:
    """Return by how many bytes edits make the texts of each source longer; negative if they make them shorter."""
    counts = select.details.get(FOLDER, {})
    return {source: one["text_bytes_after"] - one["text_bytes_before"] for source, one in counts.items()}


def is_edited(select: Manifest, partition: Partition) -> bool:
    """Return True if texts of this normalized partition are edited."""
    listed = select.files_by_path.get(edits_path(partition.source, urls.name(partition.path)))
    return listed is not None and listed.rows > 0


def edit_equations(select: Manifest) -> Iterator[Equation]:
    """Yield the equations of a select step's edits."""
    if FOLDER not in select.details:
        listed = sum(file.path.startswith(f"{FOLDER}/") for file in select.files)
        yield "the number of lists of edits", listed, "that of a step without edits", 0
        return
    counts, stretches, rows = select.details[FOLDER], Counter[str](), Counter[str]()
    for one in counts.values():
        stretches.update(one["stretches"])
    for source in counts:
        for part in select.partitions_of(source):
            listed = select.files_by_path.get(edits_path(source, urls.name(part.path)))
            yield f"the lists of edits for {part.path}", int(listed is not None), "the number that it needs", 1
            rows[source] += listed.rows if listed is not None else 0
    for source, one in counts.items():
        yield f"the edited documents of {source!r}", one["documents"], "the rows of their lists", rows[source]
    yield "select/edited", select.counters["select/edited"], "the sum over the sources", rows.total()
    prefix = "select/edits/"
    counted = {name.removeprefix(prefix): n for name, n in select.counters.items() if name.startswith(prefix)}
    yield "the stretches by edit", counted, "the sum over the sources", dict(stretches)


def edited_size_equations(cache: Manifest, select: Manifest, filled: Sequence[Partition]) -> Iterator[Equation]:
    """Yield, for each source with edits from which nothing leaves, the equation of the bytes of its texts. filled: the
    normalized partitions from which the cache was made.
    """
    leaving = Counter[str]()
    for part in select.partitions:
        leaving[part.source] += part.rows
    for source, growth in growths(select).items():
        if not leaving[source] and not cache.quarantine.records:
            ours = sum(part.text_bytes or 0 for part in cache.partitions if part.source == source)
            theirs = sum(part.text_bytes or 0 for part in filled if part.source == source)
            yield f"the bytes of text of {source!r}", ours, "those of its edited texts", theirs + growth
