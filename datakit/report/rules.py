"""Composes the section about rules: what each rule removed from each source, and what is retained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from datakit.conditions.config import DROP
from datakit.errors import counted
from datakit.pipeline.fate.behind import Finished
from datakit.pipeline.rule_effects.effects import Effects, SampleOptions, effects_of, with_retained
from datakit.report.figures import Cell, Chart, Column, Figure, Section, Table
from datakit.report.subject import Subject
from datakit.storage.manifest import Manifest

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
RETAINED = (
    Column("source"), Column("documents", "count"), Column("by rules", "count"), Column("otherwise", "count"),
    Column("retained", "count"), Column("text", "bytes"), Column("tokens", "count"),
)  # fmt: skip


def rules_section(subject: Subject) -> Iterator[Section]:
    """Yield the section, if the report has a step with rules."""
    found = [_effects(subject, step.directory, step.manifest) for step in subject.found("rules") if step.manifest]
    if not found:
        return
    figures = [_by_rule(found)]
    if any(one.retained for one in found):
        figures.append(_by_source(found))
    yield Section("rules", "Rules", INTRO, tuple(figures))


def _effects(subject: Subject, directory: str, manifest: Manifest) -> Effects:
    caches = [step.manifest for step in subject.found("tokenize") if step.manifest]
    cache = next((one for one in caches if one.dataset == manifest.dataset), None)
    return with_retained(effects_of(Finished(directory, manifest), {}, cache, SampleOptions()), cache)


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
        "Documents leave otherwise as duplicates, because of final rules or equal texts, if they are empty after "
        "editing, or if they could not be used."
    )
    return Figure("retained", "Retained, by source", table, note=note, wide=True)


def _sum(values: list[Cell]) -> int | None:
    numbers = [value for value in values if isinstance(value, int)]
    return sum(numbers) if len(numbers) == len(values) else None


def _named(name: str, one: Effects, found: list[Effects]) -> str:
    return f"{one.dataset}/{name}" if len(found) > 1 else name
