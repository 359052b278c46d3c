"""Draws the figure of `datakit cache stats`: document lengths, tokens per source, and the most frequent tokens."""

from __future__ import annotations

from typing import Any

from datakit.cache.summary import CacheSummary
from datakit.plots.files import INK, cut, new_figure, save, short
from datakit.storage import urls

BARS = 20  # maximum number of bars: as many as are legible at this height
SHOWN_NAME = 28  # maximum number of characters in a label
LAST_DRAWABLE = 0x500  # the default font has Latin, Greek and Cyrillic, which end before this code point
BLUE, ORANGE, GREEN = "#3b6ea5", "#c8762b", "#4d8a57"


def write_plot(summary: CacheSummary, names: dict[int, str], url: str) -> None:
    """Write the figure, replacing any existing file. `names` maps token ids to texts. Raises UsageError, as
    `check_target` does.
    """
    figure = new_figure(url, (13, 4.8))
    lengths, sources, tokens = figure.subplots(1, 3)
    _lengths(lengths, summary)
    _sources(sources, summary)
    _tokens(tokens, summary, names)
    figure.suptitle(f"{urls.name(summary.directory)}: {summary.documents:,} documents, {summary.tokens:,} tokens")
    save(figure, url)


def _lengths(axes: Any, summary: CacheSummary) -> None:
    labels = [_binary(first) for first, _, _ in summary.lengths]
    bars = axes.bar(labels, [count for _, _, count in summary.lengths], color=BLUE, width=0.9)
    axes.bar_label(bars, labels=[short(count) for _, _, count in summary.lengths], fontsize=7, color=INK)
    axes.set(title="documents by length", xlabel="tokens (lower bound)", ylabel="documents")
    axes.tick_params(axis="x", rotation=60)
    _plain(axes)


def _sources(axes: Any, summary: CacheSummary) -> None:
    ordered = sorted(summary.sources.items(), key=lambda entry: (-entry[1].tokens, entry[0]))
    rows = [(name, sums.tokens) for name, sums in ordered[:BARS]]
    if rest := ordered[BARS:]:
        rows.append((f"{len(rest)} more", sum(sums.tokens for _, sums in rest)))
    _across(axes, rows, summary.tokens, ORANGE)
    axes.set(title="tokens by source", xlabel="tokens")


def _tokens(axes: Any, summary: CacheSummary, names: dict[int, str]) -> None:
    rows = [(_drawable(names.get(number, f"#{number}")), count) for number, count in summary.frequent[:BARS]]
    _across(axes, rows, summary.tokens, GREEN)
    axes.set(title="most frequent tokens", xlabel="times")
    for label in axes.get_yticklabels():
        label.set_family("monospace")


def _across(axes: Any, rows: list[tuple[str, int]], total: int, colour: str) -> None:
    bars = axes.barh(range(len(rows)), [count for _, count in rows], color=colour, height=0.8)
    axes.bar_label(bars, labels=[f"{count / max(total, 1):.1%}" for _, count in rows], fontsize=7, padding=2, color=INK)
    axes.set_yticks(range(len(rows)), [cut(name, SHOWN_NAME) for name, _ in rows], fontsize=8, parse_math=False)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.margins(x=0.14)
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _drawable(token: str) -> str:
    """Show spaces as a symbol, and escape unprintable characters and those that matplotlib's default font lacks."""
    shown = token.replace(" ", "␣").encode("unicode_escape" if not token.isprintable() else "utf-8").decode()
    shown = shown.replace("\\u2423", "␣")
    return "".join(sign if ord(sign) < LAST_DRAWABLE or sign == "␣" else f"\\u{ord(sign):04x}" for sign in shown)


def _binary(value: int) -> str:
    for unit, size in (("Mi", 1 << 20), ("Ki", 1 << 10)):
        if value >= size:
            return f"{value // size} {unit}"
    return str(value)
