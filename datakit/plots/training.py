"""Draws a training run from its logged metrics: losses, bits per byte of each tag, learning rates, speed and routing
entropy. A run can be drawn while it is in progress, and also after it has been killed.

    plot_run("data/demo/train-0123456789ab")  ->  data/demo/train-0123456789ab/plot.png
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datakit.plots import files
from datakit.trainer.metrics.json_lines import read_metrics

MOST_INSIDE = 4  # maximum number of lines for which the legend is inside the axes
MOST_NAMED = 20  # maximum number of lines named in the legend: as many as fit beside the axes
# The loss is averaged over a 50th of the run. With a fixed number of steps, the curve of a short run would lag.
SMOOTHED_OVER = 50


def plot_run(directory: str, target: str | None = None) -> str:
    """Draw a run, save the figure as `target` (default: `plot.png` in the run's directory), and return the figure's
    path. Raises UsageError if the run has no metrics, and the errors of `check_target`.
    """
    path = target or str(Path(directory) / "plot.png")
    figure = files.new_figure(path, (12, 8))
    rows = read_metrics(directory)
    axes = figure.subplots(2, 2)
    _losses(axes[0][0], rows)
    bits = [name for name in _named(rows, "eval/") if name.endswith("/bpb") or name == "eval/macro_bpb"]
    _lines(axes[0][1], rows, bits, "bits per byte")
    _lines(axes[1][0], rows, _named(rows, "optim/learning_rate/"), "learning rate")
    _speed(axes[1][1], rows)
    figure.suptitle(Path(directory).parent.name + "/" + Path(directory).name)
    for axis in axes.flat:
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    files.save(figure, path)
    return path


def _series(rows: Sequence[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    points = [(row["global_step"], row[name]) for row in rows if row.get(name) is not None]
    return [step for step, _ in points], [value for _, value in points]


def _named(rows: Sequence[dict[str, Any]], prefix: str) -> list[str]:
    return sorted({name for row in rows for name in row if name.startswith(prefix)})


def smooth(values: Sequence[float]) -> list[float]:
    """Return the exponential moving average of the values, over a window of about a 50th of the values. The bias at the
    start is corrected as in Adam.
    >>> smooth([2.0, 2.0, 2.0])
    [2.0, 2.0, 2.0]
    """
    past = 1 - 1 / max(1.0, len(values) / SMOOTHED_OVER)
    total, weight, out = 0.0, 0.0, []
    for value in values:
        total, weight = past * total + (1 - past) * value, past * weight + (1 - past)
        out.append(total / weight)
    return out


def _losses(axis: Any, rows: Sequence[dict[str, Any]]) -> None:
    steps, values = _series(rows, "train/cross_entropy_loss")
    axis.plot(steps, values, color="tab:blue", alpha=0.25)
    axis.plot(steps, smooth(values), color="tab:blue", label="train")
    _marks(axis, rows, ["eval/loss", "eval/macro_loss"], ("tab:orange", "tab:green"))
    axis.set_ylabel("loss (nats per token)")
    _legend(axis)


def _lines(axis: Any, rows: Sequence[dict[str, Any]], names: Sequence[str], label: str) -> None:
    _marks(axis, rows, names)
    axis.set_ylabel(label)
    _legend(axis)


def _legend(axis: Any) -> None:
    """Add a legend that names the lines. If it has so many entries that it would hide lines, put it beside the axes."""
    handles, names = axis.get_legend_handles_labels()
    if len(names) > MOST_INSIDE:
        rest = len(names) - MOST_NAMED
        title = f"{MOST_NAMED} of {len(names)} lines" if rest > 0 else None
        place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "fontsize": 8, "frameon": False, "title": title}
        axis.legend(handles[:MOST_NAMED], names[:MOST_NAMED], **place)
    elif names:
        axis.legend()


def _marks(
    axis: Any, rows: Sequence[dict[str, Any]], names: Sequence[str], colors: Sequence[str | None] = (None,)
) -> None:
    """Draw one line per series. Equal series share one line and one label, because otherwise the line drawn last would
    hide the others.
    """
    lines: dict[tuple[tuple[int, ...], tuple[float, ...]], list[str]] = {}
    for name in names:
        steps, values = _series(rows, name)
        if steps:
            lines.setdefault((tuple(steps), tuple(values)), []).append(name)
    for number, ((steps, values), same) in enumerate(lines.items()):
        label = " = ".join(_short(name) for name in same)
        marker, color = "o" if len(steps) < 40 else None, colors[number % len(colors)]
        axis.plot(steps, values, marker=marker, label=label, color=color)


def _short(name: str) -> str:
    """Shorten a metric's name for the legend.
    >>> _short("eval/web/bpb"), _short("eval/macro_bpb"), _short("optim/learning_rate/adamh")
    ('web', 'macro', 'adamh')
    >>> _short("eval/bpb"), _short("eval/loss")
    ('all', 'eval/loss')
    """
    if name.endswith("bpb"):
        return name.removeprefix("eval/").removesuffix("bpb").rstrip("/_") or "all"
    return name.removeprefix("optim/learning_rate/")


def _speed(axis: Any, rows: Sequence[dict[str, Any]]) -> None:
    steps, values = _series(rows, "throughput/tokens_per_second")
    axis.plot(steps, values, color="tab:green", alpha=0.4, label="tokens/s")
    axis.set_ylabel("tokens per second", color="tab:green")
    axis.set_ylim(bottom=0)
    other = axis.twinx()
    other.plot(*_series(rows, "train/router/routing_entropy_mean"), color="tab:red", label="routing entropy")
    other.set_ylabel("routing entropy (nats)", color="tab:red")
