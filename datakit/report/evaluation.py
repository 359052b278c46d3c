"""Composes the section about evaluation sets: the documents of each source that contain parts of their items.

The counts are those before rules and edits, so they tell what was found, not what is left.
"""

from __future__ import annotations

from collections.abc import Iterator

from datakit.annotate.contamination.item_counts import ALL, ITEMS, TOO_SHORT
from datakit.report.figures import Cell, Chart, Column, Figure, Section, Table
from datakit.report.subject import Subject

COUNTER = "annotate/contamination/"
MOST_ROWS = 1000
INTRO = (
    "Documents that contain n-grams of evaluation items, before rules and edits. A document counts once for each set, "
    "among the items that the annotator reports for it. Items that are too short cannot be found in any document."
)
COLUMNS = (
    Column("set"), Column("source"), Column("documents", "count"), Column("with items", "count"),
    Column("share", "percent"), Column("items", "count"), Column("too short", "count"),
)  # fmt: skip


def evaluation_section(subject: Subject) -> Iterator[Section]:
    """Yield the section, if the report has a step that searched for evaluation items."""
    found = [step.manifest for step in subject.found("annotate") if step.manifest]
    rows = list[tuple[Cell, ...]]()
    by_set = dict[str, int]()
    for manifest in found:
        documents = manifest.counters["annotate/documents"]
        for counter, count in sorted(manifest.counters.items()):
            if counter.startswith(COUNTER):
                name = counter.removeprefix(COUNTER)
                by_set[name] = by_set.get(name, 0) + count
                share = count / documents if documents else None
                items = (manifest.counters.get(f"annotate/{ITEMS}{name}{which}") for which in (ALL, TOO_SHORT))
                rows.append((name, manifest.dataset, documents, count, share, *items))
    if not rows:
        return
    rows.sort(key=lambda row: str(row[0]))  # keeps the order of the sources
    series = [{"name": "documents", "values": [*by_set.values()], "tone": "accent"}]
    chart = Chart("bars", {"categories": [*by_set], "series": series, "unit": "count"},
                  f"Items of {len(by_set):,} evaluation sets were searched for.")  # fmt: skip
    more = f"The first {MOST_ROWS:,} of {len(rows):,} rows." if len(rows) > MOST_ROWS else ""
    table = Table("Evaluation sets by source", COLUMNS, rows[:MOST_ROWS], more=more)
    figure = Figure("evaluation-sets", "Documents with items, by evaluation set", table, chart, wide=True)
    yield Section("evaluation", "Evaluation items", INTRO, (figure,))
