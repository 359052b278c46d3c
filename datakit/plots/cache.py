"""The figure of `datakit cache stats`: lengths of documents, tokens by source, most frequent tokens.

Needs matplotlib (the extra `report`), which is imported when a figure is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datakit.cache.summary import CacheSummary
from datakit.errors import UsageError
from datakit.storage import atomic, urls

BARS = 20
SHOWN_NAME = 28
LAST_DRAWABLE = 0x500  # Latin, Greek, Cyrillic
INK, BLUE, ORANGE, GREEN = "#333333", "#3b6ea5", "#c8762b", "#4d8a57"


def write_plot(summary: CacheSummary, names: dict[int, str], url: str) -> None:
    """A PNG, SVG or PDF file, by its name's ending; one that is there is replaced. `names`: tokens' texts by id.

    Raises UsageError.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("--plot needs matplotlib; pip install 'datakit[report]'") from error
    kind = Path(urls.name(url)).suffix.removeprefix(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise UsageError(f"--plot {url}: the name must end in .png, .svg or .pdf")
    figure = Figure(figsize=(13, 4.8), layout="constrained")
    lengths, sources, tokens = figure.subplots(1, 3)
    _lengths(lengths, summary)
    _sources(sources, summary)
    _tokens(tokens, summary, names)
    figure.suptitle(f"{urls.name(summary.directory)}: {summary.documents:,} documents, {summary.tokens:,} tokens")
    with atomic.staging(url) as staged:
        figure.savefig(staged, format=kind, dpi=120)
        atomic.replace_bytes(staged.read_bytes(), url)


def _lengths(axes: Any, summary: CacheSummary) -> None:
    labels = [_power(first) for first, _, _ in summary.lengths]
    bars = axes.bar(labels, [count for _, _, count in summary.lengths], color=BLUE, width=0.9)
    axes.bar_label(bars, labels=[_short(count) for _, _, count in summary.lengths], fontsize=7, color=INK)
    axes.set(title="documents by length", xlabel="tokens, from", ylabel="documents")
    axes.tick_params(axis="x", rotation=60)
    _plain(axes)


def _sources(axes: Any, summary: CacheSummary) -> None:
    ordered = sorted(summary.sources.items(), key=lambda entry: (-entry[1].tokens, entry[0]))
    rows = [(name, sums.tokens) for name, sums in ordered[:BARS]]
    rest = ordered[BARS:]
    if rest:
        rows.append((f"{len(rest)} more", sum(sums.tokens for _, sums in rest)))
    _across(axes, [(name, count, f"{count / max(summary.tokens, 1):.1%}") for name, count in rows], ORANGE)
    axes.set(title="tokens by source", xlabel="tokens")


def _tokens(axes: Any, summary: CacheSummary, names: dict[int, str]) -> None:
    rows = [(_drawable(names.get(number, f"#{number}")), count) for number, count in summary.frequent[:BARS]]
    _across(axes, [(name, count, f"{count / max(summary.tokens, 1):.1%}") for name, count in rows], GREEN)
    axes.set(title="most frequent tokens", xlabel="times")
    for label in axes.get_yticklabels():
        label.set_family("monospace")


def _across(axes: Any, rows: list[tuple[str, int, str]], colour: str) -> None:
    bars = axes.barh(range(len(rows)), [count for _, count, _ in rows], color=colour, height=0.8)
    axes.bar_label(bars, labels=[label for _, _, label in rows], fontsize=7, padding=2, color=INK)
    axes.set_yticks(range(len(rows)), [_cut(name) for name, _, _ in rows], fontsize=8, parse_math=False)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    axes.margins(x=0.14)
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _drawable(token: str) -> str:
    """White space as signs, and as escapes what the font that comes with matplotlib does not have."""
    shown = token.replace(" ", "␣").encode("unicode_escape" if not token.isprintable() else "utf-8").decode()
    shown = shown.replace("\\u2423", "␣")
    return "".join(sign if ord(sign) < LAST_DRAWABLE or sign == "␣" else f"\\u{ord(sign):04x}" for sign in shown)


def _cut(name: str) -> str:
    return name if len(name) <= SHOWN_NAME else name[: SHOWN_NAME - 1] + "…"


def _power(value: int) -> str:
    for unit, size in (("Mi", 1 << 20), ("Ki", 1 << 10)):
        if value >= size:
            return f"{value // size} {unit}"
    return str(value)


def _short(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"
