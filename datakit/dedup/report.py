"""Builds the report in dedup's manifest (removals per source, component sizes), and enforces the removal limit
`max_removal`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from datakit.dedup.partitions import Part
from datakit.dedup.phase_data import Judged
from datakit.dedup.verification.verify import LARGEST
from datakit.errors import StepFailedError

Removal = dict[str, dict[str, Any]]


def removal_report(parts: Sequence[Part], removed: Sequence[tuple[int, int]]) -> Removal:
    """Return, for each source, the counts "documents", "exact", "fuzzy" and "retained", and the "rate" of removal.

    removed: the numbers (exact, fuzzy) of documents removed from each part.
    """
    report: Removal = {}
    for part, (exact, fuzzy) in zip(parts, removed, strict=True):
        entry = report.setdefault(part.source, {"documents": 0, "exact": 0, "fuzzy": 0})
        entry["documents"] += part.rows
        entry["exact"] += exact
        entry["fuzzy"] += fuzzy
    for entry in report.values():
        gone = entry["exact"] + entry["fuzzy"]
        entry["retained"] = entry["documents"] - gone
        entry["rate"] = round(gone / entry["documents"], 6) if entry["documents"] else 0.0
    return report


def check_removal(report: Removal, most: float) -> None:
    """Raise StepFailedError if a source would lose more than the share `most` of its documents."""
    over = [
        f"{name!r} would lose {entry['exact'] + entry['fuzzy']} of {entry['documents']} documents "
        f"({entry['exact']} exact, {entry['fuzzy']} fuzzy duplicates)"
        for name, entry in report.items()
        if entry["exact"] + entry["fuzzy"] > most * entry["documents"]
    ]
    if over:
        raise StepFailedError(
            f"dedup: {'; '.join(over)}. This is more than dedup.max_removal = {most:g} allows; check the clusters in "
            "the attribute files (cluster_id, representative_id, jaccard), and raise the limit if these clusters are "
            "correct"
        )


def cluster_report(judged: Sequence[Judged]) -> dict[str, Any]:
    """Return the histogram of component sizes and a list of the largest components, whether or not they lost documents.

    histogram: pairs [size, number of components that have at least `size` but fewer than `2 * size` documents].
    """
    counts: Counter[int] = Counter()
    for result in judged:
        counts.update({int(size): count for size, count in result.histogram.items()})
    every = [entry for result in judged for entry in result.largest]
    largest = sorted(every, key=lambda entry: (-entry[0], entry[2]))[:LARGEST]
    return {
        "histogram": [[size, count] for size, count in sorted(counts.items())],
        "largest": [{"size": size, "retained": retained, "cluster_id": name} for size, retained, name in largest],
    }
