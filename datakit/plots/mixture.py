"""The figure of `datakit mixture preview`: the share, the tokens and the epochs of each component over the run.

Needs matplotlib (the extra `report`), which is imported when a figure is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from datakit.errors import UsageError
from datakit.loader.mixture.preview import Preview
from datakit.storage import atomic, urls

COLOURS = ("#3b6ea5", "#c8762b", "#4d8a57", "#a34a5b", "#7b62a3", "#8a7a3d", "#3f8f96", "#777777")
INK, LINE = "#333333", "#999999"
KINDS = ("png", "svg", "pdf")
MOST_NAMED = 24  # components in the legend
SHOWN_CHANGE = 110
STYLES = ("-", "--", ":", "-.")


def check_plot(url: str) -> None:
    """Raises UsageError where no figure can be written: found before anything is computed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise UsageError("--plot needs matplotlib; pip install 'datakit[report]'") from error
    if _kind(url) not in KINDS:
        raise UsageError(f"--plot {url}: the name must end in .png, .svg or .pdf")


def write_plot(view: Preview, title: str, url: str) -> None:
    """A PNG, SVG or PDF file, by its name's ending; one that is there is replaced. Raises UsageError."""
    check_plot(url)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 9), layout="constrained")
    share, tokens, epochs = figure.subplots(3, 1, sharex=True)
    _shares(share, view)
    _lines(tokens, view, view.tokens, "tokens so far")
    tokens.yaxis.set_major_formatter(lambda value, _: short(value))
    _lines(epochs, view, view.epochs, "epochs so far")
    epochs.set_xlabel("step")
    epochs.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for axes in (share, tokens, epochs):
        _mark_changes(axes, view)
        axes.set_xlim(0, int(view.steps[-1]))
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9)
    _name_changes(share, view)
    handles, names = share.get_legend_handles_labels()
    share.legend(
        handles[:MOST_NAMED][::-1], names[:MOST_NAMED][::-1], loc="center left", bbox_to_anchor=(1.01, 0.5),
        frameon=False, fontsize=9,
    )  # fmt: skip
    figure.suptitle(title, color=INK, parse_math=False)
    with atomic.staging(url) as staged:
        figure.savefig(staged, format=_kind(url), dpi=120)
        atomic.replace_bytes(staged.read_bytes(), url)


def short(value: float) -> str:
    """A count as people say it.

    >>> short(12_300_000), short(40)
    ('12.3 M', '40')
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


def _kind(url: str) -> str:
    return Path(urls.name(url)).suffix.removeprefix(".").lower()


def _shares(axes: Any, view: Preview) -> None:
    """Stacked, each share as high as it was between two points."""
    steps, shares = np.repeat(view.steps, 2)[1:-1], np.repeat(view.share, 2, axis=0).T
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(view.names))]
    labels = [_label(name) for name in view.names]
    axes.stackplot(steps, shares, labels=labels, colors=colours, linewidth=0.3, edgecolor="white")
    axes.set_ylim(0, 1)
    axes.set_ylabel("share of tokens")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _lines(axes: Any, view: Preview, values: np.ndarray, name: str) -> None:
    for i in range(len(view.names)):
        style = STYLES[i // len(COLOURS) % len(STYLES)]
        axes.plot(view.steps, values[:, i], color=COLOURS[i % len(COLOURS)], linewidth=1.8, linestyle=style)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(name)
    axes.grid(axis="y", color="#e5e5e5", linewidth=0.7)


def _mark_changes(axes: Any, view: Preview) -> None:
    for step in sorted({step for step, _ in view.changes}):
        axes.axvline(step, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))


def _name_changes(axes: Any, view: Preview) -> None:
    """Numbers above the lines, and what they mean, in words, above the axes."""
    steps = sorted({step for step, _ in view.changes})
    lines = []
    for number, step in enumerate(steps, start=1):
        axes.annotate(
            f"{number}", (step, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
            ha="center", va="bottom", fontsize=8, color=INK,
        )  # fmt: skip
        lines += [f"{number}  step {step:,}: {_cut(what)}" for at, what in view.changes if at == step]
    if lines:
        axes.set_title("\n".join(lines), loc="left", fontsize=9, color=INK, pad=16, parse_math=False)


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHANGE else text[: SHOWN_CHANGE - 1] + "…"


def _label(name: str) -> str:
    """A name that matplotlib neither hides (a leading _) nor reads as mathematics."""
    return f" {name}".replace("$", r"\$") if name.startswith("_") else name.replace("$", r"\$")
