"""Composes the sections about documents and tokens: the flow, the sources, and the distributions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from datakit.errors import counted
from datakit.report.counts import SourceCounts, component_sizes, document_lengths, size, total
from datakit.report.figures import Chart, Column, Figure, Section, Table
from datakit.report.flow import flow_figure
from datakit.report.subject import Subject

MOST_BARS = 15
MOST_REASONS = 12


def content_sections(subject: Subject, sources: Sequence[SourceCounts]) -> Iterator[Section]:
    """Yield the sections for which the report's steps have numbers."""
    flow = flow_figure(sources)
    if flow is not None:
        intro = "Every record is either in the output or counted under the reason for which it was left out."
        yield Section("documents", "Documents", intro, (flow,))
    if sources:
        found = tuple(_source_figures(sources))
        yield Section("sources", "Sources", f"{counted(total(sources).sources, 'source')}, each with its share.", found)
    figures = tuple(_distributions(subject))
    if figures:
        yield Section("distributions", "Distributions", "Each range is twice as wide as the one before.", figures)


def _source_figures(sources: Sequence[SourceCounts]) -> Iterator[Figure]:
    everything = total(sources)
    shown = _largest(sources)
    names = [source.name for source in shown]
    kept = [source.kept for source in shown]
    lost = [sum(source.left_out.values()) + sum(source.removed.values()) for source in shown]
    series = [{"name": "kept", "values": kept, "tone": "accent"}, {"name": "left out", "values": lost, "tone": "lost"}]
    chart = Chart("bars", {"categories": names, "series": series, "unit": "count"},
                  f"Of all records, {_share(everything.retained)} were kept.")  # fmt: skip
    note = f"The {MOST_BARS} largest sources; the table lists all." if len(sources) > MOST_BARS else ""
    yield Figure("retention", "Documents kept, by source", _source_table(sources, everything), chart, note, wide=True)
    if everything.tokens is not None:
        values = [source.tokens for source in shown]
        data = {"categories": names, "series": [{"name": "tokens", "values": values, "tone": "accent"}],
                "unit": "count"}  # fmt: skip
        chart = Chart("bars", data, f"The sources have {counted(everything.tokens, 'token')} in total.")
        yield Figure("tokens", "Tokens, by source", _token_table(sources, everything), chart, note, wide=True)


def _largest(sources: Sequence[SourceCounts]) -> list[SourceCounts]:
    """Return the sources that get a bar: the largest ones first, and a sum of several sources last."""
    return sorted(sources, key=lambda source: (source.sources == 1, size(source)), reverse=True)[:MOST_BARS]


def _share(value: float | None) -> str:
    return "an unknown share" if value is None else f"{value:.1%}"


def _source_table(sources: Sequence[SourceCounts], everything: SourceCounts) -> Table:
    reasons = _reasons(everything)
    columns = [
        Column("source"), Column("records", "count"), Column("kept", "count"), Column("share kept", "percent"),
        Column("text", "bytes"), *(Column(why, "count") for why in reasons),
    ]  # fmt: skip
    return Table("Records by source", tuple(columns), [_source_row(one, reasons) for one in sources],
                 _source_row(everything, reasons))  # fmt: skip


def _reasons(everything: SourceCounts) -> list[str]:
    """Return the reasons that get a column, the most frequent ones if there are many."""
    counts = everything.left_out + everything.removed
    frequent = {why for why, _ in counts.most_common(MOST_REASONS)}
    return [why for why in counts if why in frequent]


def _source_row(source: SourceCounts, reasons: Sequence[str]) -> list[str | int | float | None]:
    counts: Counter[str] = source.left_out + source.removed
    return [source.name, source.records, source.kept, source.retained, source.text_bytes,
            *(counts[why] for why in reasons)]  # fmt: skip


def _token_table(sources: Sequence[SourceCounts], everything: SourceCounts) -> Table:
    whole = everything.tokens or 0
    columns = (Column("source"), Column("documents", "count"), Column("tokens", "count"), Column("share", "percent"))
    rows = [(one.name, one.kept, one.tokens, (one.tokens or 0) / whole if whole else None) for one in sources]
    return Table("Tokens by source", columns, rows, ("all", everything.kept, whole, 1.0 if whole else None))


def _distributions(subject: Subject) -> Iterator[Figure]:
    lengths = document_lengths(subject)
    if lengths:
        yield _histogram("lengths", "Length of documents", "tokens", "documents", lengths)
    components = component_sizes(subject)
    if components:
        yield _histogram("components", "Size of components", "documents", "components", components, _COMPONENTS)


_COMPONENTS = (
    "A component is a group of documents that may be similar: they share band keys, directly or through others. Dedup "
    "then compares them exactly. Components in which no document is similar enough to another lose none."
)


def _histogram(  # noqa: PLR0917
    key: str, title: str, what: str, counts: str, bins: Sequence[tuple[int, int, int]], note: str = ""
) -> Figure:
    series = [{"name": counts, "values": [count for _, _, count in bins], "tone": "accent"}]
    data = {"categories": [_range(least, most) for least, most, _ in bins], "series": series, "unit": "count",
            "x": what}  # fmt: skip
    most = max(bins, key=lambda entry: entry[2])
    described = f"Most {counts} ({most[2]:,}) are in the range {_range(most[0], most[1])} {what}."
    table = Table(title, (Column(what), Column(counts, "count")), [(_range(a, b), count) for a, b, count in bins],
                  ("all", sum(count for _, _, count in bins)))  # fmt: skip
    return Figure(key, title, table, Chart("columns", data, described), note)


def _range(least: int, most: int) -> str:
    """Return the name of a range of numbers.
    >>> _range(1, 1), _range(512, 1023), _range(1 << 20, (1 << 21) - 1)
    ('1', '512–1,023', '1,048,576–2,097,151')
    """
    return f"{least:,}" if least >= most else f"{least:,}–{most:,}"
