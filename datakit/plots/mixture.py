"""Draws the figure of `datakit mixture preview`: the share, tokens and epochs of each component over the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from datakit.loader.mixture.preview import Preview
from datakit.plots.files import INK, cut, new_figure, save, short

COLOURS = ("#3b6ea5", "#c8762b", "#4d8a57", "#a34a5b", "#7b62a3", "#8a7a3d", "#3f8f96", "#777777")
MOST_NAMED = 24  # maximum number of components in the legend: as many as fit beside the axes
LABELS_ACROSS = 20  # maximum number of change labels that fit beside one another
SHOWN_CHANGE = 90  # maximum number of characters in the description of a change
STYLES = ("-", "--", ":", "-.")


def write_plot(view: Preview, title: str, url: str) -> None:
    """Draw the figure and write it to `url`, replacing any existing file. Raises the errors of `check_target`."""
    figure = new_figure(url, (11, 9))
    share, tokens, epochs = figure.subplots(3, 1, sharex=True)
    _shares(share, view)
    _lines(tokens, view, view.tokens, "tokens so far")
    tokens.yaxis.set_major_formatter(lambda value, _: short(value))
    _lines(epochs, view, view.epochs, "epochs so far")
    epochs.set_xlabel("step")
    epochs.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _finish(share, tokens, epochs, view)
    figure.suptitle(title, color=INK, parse_math=False)
    save(figure, url)


def _finish(share: Any, tokens: Any, epochs: Any, view: Preview) -> None:
    for axes in (share, tokens, epochs):
        for step in sorted({step for step, _ in view.changes}):
            axes.axvline(step, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.set_xlim(0, int(view.steps[-1]))
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9)
    _name_changes(share, view)
    handles, names = share.get_legend_handles_labels()
    handles, names = handles[:MOST_NAMED][::-1], names[:MOST_NAMED][::-1]
    share.figure.legend(handles, names, loc="outside right center", frameon=False, fontsize=9)


def _shares(axes: Any, view: Preview) -> None:
    """Draw the shares as stacked step functions."""
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


def _name_changes(axes: Any, view: Preview) -> None:
    """Put a number above the line of each change, and describe the changes above the axes. Numbers that would collide
    share a label.
    """
    steps = sorted({step for step, _ in view.changes})
    for first, last in near(steps, int(view.steps[-1]) / LABELS_ACROSS):
        label = f"{first + 1}" if first == last else f"{first + 1} to {last + 1}"
        place = ((steps[first] + steps[last]) / 2, 1.0)
        axes.annotate(
            label, place, xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
            ha="center", va="bottom", fontsize=8, color=INK,
        )  # fmt: skip
    lines = []
    for number, step in enumerate(steps, start=1):
        lines += [f"{number}  step {step:,}: {cut(what, SHOWN_CHANGE)}" for at, what in view.changes if at == step]
    if lines:
        axes.set_title("\n".join(lines), loc="left", fontsize=9, color=INK, pad=16, parse_math=False)


def near(steps: Sequence[int], distance: float) -> list[tuple[int, int]]:
    """Group ascending numbers so that neighbors closer than `distance` stay together. Return each group's first and
    last index.

    >>> near([0, 3, 50], 10)
    [(0, 1), (2, 2)]
    """
    starts = [i for i in range(len(steps)) if i == 0 or steps[i] - steps[i - 1] >= distance]
    ends = [*starts[1:], len(steps)] if starts else []
    return [(start, end - 1) for start, end in zip(starts, ends, strict=True)]


def _label(name: str) -> str:
    """Escape a name so that matplotlib neither hides it (because of a leading _) nor parses it as mathematics."""
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")
