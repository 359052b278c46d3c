"""Composes the section about rules: what each rule and final rule removed from each source, which documents the
document buckets got, and what is retained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from datakit.conditions.config import DROP
from datakit.errors import counted
from datakit.pipeline.fate.behind import Finished
from datakit.pipeline.rule_effects.effects import Effects, SampleOptions, effects_of_all, has_final
from datakit.report.figures import Cell, Chart, Column, Figure, Section, Table
from datakit.report.subject import Subject

MOST_BARS = 15
MOST_ROWS = 1000
INTRO = (
    "Of the rules that apply to a document, the first one decides. Tokens of removed documents are an estimate: the "
    "bytes of their texts, times the tokens per byte of the retained documents of the source. What is retained is "
    "counted in the token cache."
)
COLUMNS = (
    Column("rule"), Column("source"), Column("action"), Column("applies", "count"), Column("missing", "count"),
    Column("decides", "count"), Column("text removed", "bytes"), Column("about tokens", "count"),
)  # fmt: skip
BUCKETS = (
    Column("bucket"), Column("source"), Column("applies", "count"), Column("missing", "count"),
    Column("documents", "count"),
)  # fmt: skip
RETAINED = (
    Column("source"), Column("documents", "count"), Column("by rules", "count"), Column("otherwise", "count"),
    Column("retained", "count"), Column("text", "bytes"), Column("tokens", "count"),
)  # fmt: skip


def rules_section(subject: Subject) -> Iterator[Section]:
    """Yield the section, if the report has a step with rules or document buckets."""
    found = [_effects(subject, rules, select) for rules, select in _steps(subject)]
    figures = [_by_rule(found)] if any(one.rules for one in found) else []
    if any(one.buckets for one in found):
        figures.append(_by_bucket(found))
    if any(one.retained for one in found):
        figures.append(_by_source(found))
    if figures:
        yield Section("rules", "Rules", INTRO, tuple(figures))


def _steps(subject: Subject) -> Iterator[tuple[Finished | None, Finished | None]]:
    """Yield the steps with rules, each with the select step that was made from it and has final rules or buckets.
    Either may be missing.
    """
    rules, selects = (
        [Finished(step.directory, step.manifest) for step in subject.found(stage) if step.manifest]
        for stage in ("rules", "select")
    )
    above = {step.manifest.identity: step for step in rules}
    for select in (step for step in selects if has_final(step.manifest)):
        inputs = [entry.identity for entry in select.manifest.inputs]
        yield next((above.pop(name) for name in inputs if name in above), None), select
    yield from ((step, None) for step in above.values())


def _effects(subject: Subject, rules: Finished | None, select: Finished | None) -> Effects:
    caches = [step.manifest for step in subject.found("tokenize") if step.manifest]
    names = [step.manifest.dataset for step in (rules, select) if step is not None]
    cache = next((one for one in caches if one.dataset in names), None)
    return effects_of_all(rules, select, {}, cache, SampleOptions())


def _by_rule(found: list[Effects]) -> Figure:
    """Return the documents that each rule removes, and a table with a row for each rule and source."""
    removed = Counter[str]()
    rows = list[tuple[Cell, ...]]()
    for one in found:
        for effect in one.rules:
            name = _named(effect.rule, one, found)
            removed.update({name: effect.decides} if effect.action == DROP else {})
            rows.append(
                (name, effect.source, effect.action, effect.applies, effect.missing, effect.decides, effect.text_bytes,
                 effect.tokens)
            )  # fmt: skip
    total = sum(removed.values())
    shown = dict(removed.most_common(MOST_BARS))
    series = [{"name": "documents removed", "values": [*shown.values()], "tone": "lost"}]
    chart = Chart("bars", {"categories": [*shown], "series": series, "unit": "count"},
                  f"The rules removed {counted(total, 'document')}.")  # fmt: skip
    more = f"The first {MOST_ROWS:,} of {len(rows):,} rows." if len(rows) > MOST_ROWS else ""
    table = Table("Rules by source", COLUMNS, rows[:MOST_ROWS], more=more)
    note = f"The {MOST_BARS} rules that removed most." if len(removed) > MOST_BARS else ""
    return Figure("rules", "Documents removed, by rule", table, chart, note, wide=True)


def _by_bucket(found: list[Effects]) -> Figure:
    """Return a table with a row for each document bucket and source."""
    rows: list[tuple[Cell, ...]] = [
        (_named(mine.bucket, one, found), mine.source, mine.applies, mine.missing, mine.documents)
        for one in found
        for mine in one.buckets
    ]
    more = f"The first {MOST_ROWS:,} of {len(rows):,} rows." if len(rows) > MOST_ROWS else ""
    table = Table("Document buckets by source", BUCKETS, rows[:MOST_ROWS], more=more)
    note = "A document is in the first bucket that applies to it."
    return Figure("buckets", "Document buckets", table, note=note, wide=True)


def _by_source(found: list[Effects]) -> Figure:
    """Return a table with a row for each source: its documents, those that left, and those that are retained."""
    rows = list[tuple[Cell, ...]]()
    for one in found:
        for source, kept in one.retained.items():
            before, leaving = one.documents[source], one.leaving[source]
            name, others = _named(source, one, found), before - leaving - kept.documents
            rows.append((name, before, leaving, others, kept.documents, kept.text_bytes, kept.tokens))
    total = ("all", *(_sum([row[column] for row in rows]) for column in range(1, len(RETAINED))))
    table = Table("Retained by source", RETAINED, rows[:MOST_ROWS], total)
    note = (
        "Documents leave otherwise as duplicates, if their texts became equal or empty by editing, or if they could "
        "not be used."
    )
    return Figure("retained", "Retained, by source", table, note=note, wide=True)


def _sum(values: list[Cell]) -> int | None:
    numbers = [value for value in values if isinstance(value, int)]
    return sum(numbers) if len(numbers) == len(values) else None


def _named(name: str, one: Effects, found: list[Effects]) -> str:
    return f"{one.dataset}/{name}" if len(found) > 1 else name
