"""Draws the figure of `datakit attributes show`: the histogram of a column's numbers, and its most frequent labels."""

from __future__ import annotations

from typing import Any

from datakit.pipeline.attributes.histogram import Histogram
from datakit.pipeline.attributes.summary import ColumnSummary
from datakit.plots.files import INK, cut, new_figure, save, short

BLUE, ORANGE = "#3b6ea5", "#c8762b"
SHOWN_NAME = 28  # characters
INCHES = (7.0, 4.4)  # of one plot
TICKS = 10


def write_plot(summary: ColumnSummary, bins: Histogram | None, most_labels: int, url: str) -> None:
    """Draw the figure and write it to `url`, replacing any existing file. Raises the errors of `check_target`."""
    labels = summary.labels.counts if summary.labels is not None else None
    parts = [one for one in (bins, labels) if one]
    figure = new_figure(url, (INCHES[0] * max(len(parts), 1), INCHES[1]))
    axes = figure.subplots(1, max(len(parts), 1), squeeze=False)[0]
    if bins is not None:
        _numbers(axes[0], summary, bins)
    if labels:
        _labels(axes[-1], labels, most_labels)
    figure.suptitle(f"{summary.column}: {summary.rows:,} rows, {summary.nulls:,} nulls", parse_math=False)
    save(figure, url)


def _numbers(axes: Any, summary: ColumnSummary, bins: Histogram) -> None:
    """Draw bars of equal width, also on a logarithmic scale, whose first bin may begin at 0."""
    count = len(bins.counts)
    axes.bar(range(count), bins.counts, width=1, align="edge", color=BLUE, edgecolor="white", linewidth=0.5)
    shown = range(0, count + 1, max(1, count // TICKS))
    axes.set_xticks(list(shown), [_edge(bins.edges[number]) for number in shown])
    axes.set_xlabel("elements per row" if summary.kind == "list" else summary.column, parse_math=False)
    axes.set_ylabel("rows")
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    _plain(axes)


def _labels(axes: Any, labels: tuple[tuple[str, int], ...], most: int) -> None:
    rows = [*labels[:most]]
    if rest := labels[most:]:
        rows.append((f"({len(rest):,} more)", sum(count for _, count in rest)))
    total = sum(count for _, count in labels)
    bars = axes.barh(range(len(rows)), [count for _, count in rows], color=ORANGE, height=0.8)
    texts = [f"{short(count)}, {count / total:.1%}" for _, count in rows]
    axes.bar_label(bars, labels=texts, fontsize=7, padding=2, color=INK)
    axes.set_yticks(range(len(rows)), [cut(name, SHOWN_NAME) for name, _ in rows], fontsize=8, parse_math=False)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.margins(x=0.3)  # space for the bars' labels
    axes.set(xlabel="times")
    _plain(axes)


def _edge(value: float) -> str:
    return short(value) if value >= 1 or value == 0 else f"{value:g}"


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
