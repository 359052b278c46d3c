"""Draws the figure of `datakit cache stats`: document lengths, tokens per source, and the most frequent tokens."""

from __future__ import annotations

import re
from typing import Any

from datakit.cache.summary import CacheSummary
from datakit.plots.files import INK, cut, new_figure, save, short
from datakit.storage import urls

BARS = 20  # maximum number of sources or tokens shown: as many bars as are legible at the height of the figure
SHOWN_NAME = 28  # maximum number of characters in a label
FONTS = (  # the first comes with matplotlib; the others, if installed, add characters that the first lacks
    "DejaVu Sans Mono", "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans", "Noto Sans Devanagari",
    "Noto Sans Thai", "WenQuanYi Zen Hei", "Arial Unicode MS",
)  # fmt: skip
BLUE, ORANGE, GREEN = "#3b6ea5", "#c8762b", "#4d8a57"


def write_plot(summary: CacheSummary, names: dict[int, str], url: str) -> None:
    """Draw the figure and write it to `url`, replacing any existing file. `names` maps token ids to texts. Raises the
    errors of `check_target`.
    """
    figure = new_figure(url, (14, 5.6))
    lengths, sources, tokens = figure.subplots(1, 3)
    _lengths(lengths, summary)
    _sources(sources, summary)
    _tokens(tokens, summary, names)
    figure.suptitle(f"{urls.name(summary.directory)}: {summary.documents:,} documents, {summary.tokens:,} tokens")
    save(figure, url)


def _lengths(axes: Any, summary: CacheSummary) -> None:
    rows = [(_binary(first), count) for first, _, count in summary.lengths]
    _across(axes, rows, summary.documents, BLUE)
    axes.set(title="documents by length", xlabel="documents", ylabel="tokens (lower bound)")


def _sources(axes: Any, summary: CacheSummary) -> None:
    ordered = sorted(summary.sources.items(), key=lambda entry: (-entry[1].tokens, entry[0]))
    rows = [(name, sums.tokens) for name, sums in ordered[:BARS]]
    if rest := ordered[BARS:]:
        rows.append((f"{len(rest)} more", sum(sums.tokens for _, sums in rest)))
    _across(axes, rows, summary.tokens, ORANGE)
    axes.set(title="tokens by source", xlabel="tokens")


def _tokens(axes: Any, summary: CacheSummary, names: dict[int, str]) -> None:
    families, characters = _fonts()
    shown = [(names.get(number, f"#{number}"), count) for number, count in summary.frequent[:BARS]]
    _across(axes, [(drawable(name, characters), count) for name, count in shown], summary.tokens, GREEN)
    axes.set(title="most frequent tokens", xlabel="times")
    for label in axes.get_yticklabels():
        label.set_family(families)


def _across(axes: Any, rows: list[tuple[str, int]], total: int, colour: str) -> None:
    bars = axes.barh(range(len(rows)), [count for _, count in rows], color=colour, height=0.8)
    shares = [f"{short(count)}, {count / max(total, 1):.1%}" for _, count in rows]
    axes.bar_label(bars, labels=shares, fontsize=7, padding=2, color=INK)
    axes.set_yticks(range(len(rows)), [cut(name, SHOWN_NAME) for name, _ in rows], fontsize=8, parse_math=False)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.locator_params(axis="x", nbins=4)
    axes.margins(x=0.3)  # space for the bars' labels
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _fonts() -> tuple[list[str], set[int]]:
    """Return the names of the installed fonts among FONTS, and the code points that at least one of them has."""
    from matplotlib import font_manager, ft2font

    found: dict[str, set[int]] = {}
    for entry in font_manager.fontManager.ttflist:
        if entry.name in FONTS and entry.name not in found:
            found[entry.name] = set(ft2font.FT2Font(entry.fname).get_charmap())
    return [name for name in FONTS if name in found], set().union(*found.values())


def drawable(token: str, characters: set[int]) -> str:
    """Return a token's text in a form that can be drawn. A space becomes a symbol, and a run of four or more spaces
    becomes one symbol with a count. A character that is not printable, or not among the code points `characters`,
    becomes an escape.

    >>> drawable("\\n      x", {ord("x"), ord("\u2423")})
    '\\\\n␣×6x'
    """
    shown = re.sub(" {4,}", lambda run: f"␣×{len(run[0])}", token).replace(" ", "␣")
    escaped = (sign.encode("unicode_escape").decode() for sign in shown)
    return "".join(
        sign if sign in "␣×" or (sign.isprintable() and ord(sign) in characters) else escape
        for sign, escape in zip(shown, escaped, strict=True)
    )


def _binary(value: int) -> str:
    for unit, size in (("Mi", 1 << 20), ("Ki", 1 << 10)):
        if value >= size:
            return f"{value // size} {unit}"
    return str(value)
