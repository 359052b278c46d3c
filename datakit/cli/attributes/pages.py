"""Formats summaries, histograms and samples of attributes as text of at most 80 columns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from datakit.cli.console import GAP, INDENT, WIDTH, table, visible, wrapped
from datakit.errors import counted

if TYPE_CHECKING:
    from datakit.pipeline.attributes.histogram import Histogram
    from datakit.pipeline.attributes.sample import Sampled
    from datakit.pipeline.attributes.summary import ColumnSummary
    from datakit.pipeline.attributes.tables import Annotated

HEADERS = ("column", "kind", "rows", "nulls", "min", "median", "max")
SOURCES_SHOWN, LABELS_SHOWN = 5, 5
LABEL_WIDTH = 28
NONE = "-"


def overview_page(found: Annotated, summaries: Sequence[ColumnSummary]) -> str:
    """Return a table with a row for each column and, below it, its most frequent labels."""
    sources = found.sources
    more = f" and {len(sources) - SOURCES_SHOWN:,} more" if len(sources) > SOURCES_SHOWN else ""
    named = f"{', '.join(sources[:SOURCES_SHOWN])}{more}"
    head = f"{counted(found.documents, 'document')} of {counted(len(sources), 'source')}: {named}"
    rows = [[one.column, one.kind, one.rows, one.nulls, *_right(_extremes(one))] for one in summaries]
    return f"{wrapped(head, more='  ')}\n\n{table(HEADERS, rows, [_frequent(one) for one in summaries])}"


def _extremes(summary: ColumnSummary) -> tuple[str, str, str]:
    found = summary.numbers
    if found is None:
        return NONE, NONE, NONE
    return number_text(found.least), number_text(found.median), number_text(found.most)


def _right(cells: Sequence[str]) -> list[str]:
    return [cell.rjust(9) for cell in cells]


def _frequent(summary: ColumnSummary) -> str:
    """Return the most frequent labels in one line."""
    labels = summary.labels
    if labels is None:
        return ""
    if labels.counts is None:
        return "too many different labels to count"
    shares = [f"{_cut(visible(name))} {count / labels.total:.1%}" for name, count in labels.counts[:LABELS_SHOWN]]
    rest = ", ..." if len(labels.counts) > LABELS_SHOWN else ""
    return f"{counted(len(labels.counts), 'label')}: {', '.join(shares)}{rest}" if shares else ""


def summary_page(summary: ColumnSummary, documents: int) -> str:
    """Return a column's counts and the quantiles of its numbers."""
    head = f"{summary.column} ({summary.kind}): {counted(summary.rows, 'row')}, {counted(summary.nulls, 'null')}"
    if documents > summary.rows:
        head += f"; {documents - summary.rows:,} of {documents:,} documents have no row"
    if summary.not_finite:
        head += f"; {summary.not_finite:,} NaN or infinite values are left out"
    lines, found = [wrapped(head, more=INDENT)], summary.numbers
    if found is not None:
        names = ["min", *(f"{float(share):.0%}" for share in found.quantiles), "max"]
        values = [found.least, *found.quantiles.values(), found.most]
        what = "elements per row" if summary.kind == "list" else "quantiles"
        error = f" (each within {found.error:.1%})" if found.error else ""
        lines.append(f"\n{what}{error}:")
        lines.append(_columns(names, [number_text(value) for value in values]))
    return "\n".join(lines)


def _columns(names: Sequence[str], values: Sequence[str]) -> str:
    """Return the values below their names; in two blocks if one would be wider than WIDTH."""
    widths = [max(len(name), len(value)) for name, value in zip(names, values, strict=True)]
    half = -(-len(names) // 2)
    fits = sum(widths) + len(GAP) * len(names) <= WIDTH
    parts = [range(len(names))] if fits else [range(half), range(half, len(names))]
    return "\n".join(
        GAP + GAP.join(cells[one].rjust(widths[one]) for one in part) for part in parts for cells in (names, values)
    )


def histogram_page(summary: ColumnSummary, bins: Histogram) -> str:
    """Return the histogram of the numbers, with one line per bin."""
    whole = summary.kind == "list" or not summary.type.startswith(("float", "double", "halffloat"))
    names = []
    for low, high in itertools.pairwise(bins.edges):
        high = high - 1 if whole else high
        names.append(number_text(low) if low == high else f"{number_text(low)} to {number_text(high)}")
    title = "elements" if summary.kind == "list" else "value"
    return _bars(title if bins.scale == "linear" else f"{title} (log)", names, bins.counts)


def labels_page(summary: ColumnSummary, most: int) -> str:
    """Return the counts of the most frequent labels, with one line per label."""
    assert summary.labels is not None and summary.labels.counts is not None
    shown, rest = summary.labels.counts[:most], summary.labels.counts[most:]
    names = [_cut(visible(name)) for name, _ in shown]
    counts = [count for _, count in shown]
    if rest:
        names, counts = [*names, f"({len(rest):,} more)"], [*counts, sum(count for _, count in rest)]
    return _bars("label", names, counts)


def _bars(title: str, names: Sequence[str], counts: Sequence[int]) -> str:
    total, most = max(sum(counts), 1), max([*counts, 1])
    width = max(map(len, (title, *names)))
    head = (title, "count", "share", "")
    rows = [[name.rjust(width), count, f"{count / total:6.1%}"] for name, count in zip(names, counts, strict=True)]
    used = len(table(head[:3], rows).splitlines()[0]) + len(GAP)
    room = max(WIDTH - max(used, *(len(line) + len(GAP) for line in table(head[:3], rows).splitlines())), 1)
    bars = ["#" * -(-count * room // most) for count in counts]
    return table(head, [[*row, bar] for row, bar in zip(rows, bars, strict=True)])


def sample_page(drawn: Sequence[Sampled], matching: int, summary: ColumnSummary) -> str:
    """Return a table of the sampled documents, with the start of each text below it if it was read."""
    if not drawn:
        return f"no document of {summary.column} has such a value"
    head = f"{counted(len(drawn), 'document')} of {matching:,} that match:"
    rows = [[one.id, visible(one.source), _value(one)] for one in drawn]
    below = [visible(" ".join((one.excerpt or "").split())) for one in drawn]
    return f"{head}\n{table(('id', 'source', summary.column), rows, below)}"


def _value(one: Sampled) -> str:
    if isinstance(one.value, str):
        return _cut(visible(one.value))
    text = NONE if one.value is None else number_text(one.value)
    labels = ", ".join(f"{visible(name)} {count:,}" for name, count in sorted(one.labels.items()))
    return f"{text}: {labels}" if labels else text


def number_text(value: float) -> str:
    """Format a number with at most 5 digits after the point; integers below 10^15 are printed in full.

    >>> number_text(0.45000001), number_text(12345.0), number_text(0.0000123)
    ('0.45', '12,345', '1.23e-05')
    """
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.5g}"


def _cut(text: str) -> str:
    return text if len(text) <= LABEL_WIDTH else f"{text[: LABEL_WIDTH - 1]}…"
