"""Composes the section with the curves of a training run, and collects the last values of its main metrics.

A curve has at most POINTS points. If a run has more rows, each point is the average of several consecutive rows. Rows
without a value are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from datakit.report.figures import TONES, Chart, Column, Figure, Section, Table
from datakit.report.subject import Subject
from datakit.storage import urls
from datakit.trainer.metrics.json_lines import STEP, read_metrics

POINTS = 300
MOST_CURVES = 6  # curves that one figure shows
TABLE_ROWS = 20
LAST = {  # the metrics at the top of the page
    "train/cross_entropy_loss": "training loss",
    "eval/macro_loss": "validation loss",
    "eval/macro_bpb": "bits per byte",
}
Row = dict[str, Any]
Curve = tuple[str, list[tuple[int, float]]]


def training_sections(subject: Subject) -> Iterator[Section]:
    """Yield the section of a training run; nothing for other subjects."""
    if subject.kind != "training run":
        return
    rows = read_metrics(urls.local_path(subject.directory))
    done = f"{rows[-1][STEP]:,} steps" if rows else "no step yet"
    state = "finished" if subject.manifest is not None else "not finished"
    yield Section("training", "Training", f"{done}; the run is {state}.", tuple(_figures(rows)))


def last_figures(subject: Subject) -> list[tuple[str, float]]:
    """Return the losses and the bits per byte that the run measured last, as pairs of a name and a value."""
    rows = read_metrics(urls.local_path(subject.directory))
    last: dict[str, float] = {}
    for row in rows:
        last |= {name: value for name, value in row.items() if isinstance(value, int | float)}
    return [(title, last[name]) for name, title in LAST.items() if name in last]


def training_time(subject: Subject) -> tuple[float, bool] | None:
    """Return the seconds that the run's steps, saves and evaluations took, without compilation, and whether this is
    exact. If only some steps have a row, each row stands for the steps since the previous one. Return None if no row
    has a duration.
    """
    rows = [row for row in read_metrics(urls.local_path(subject.directory)) if _seconds(row, "duration")]
    before = [0, *(row[STEP] for row in rows)]
    widths = [row[STEP] - last for row, last in zip(rows, before, strict=False)]
    sums = (
        width * (_seconds(row, "duration") + _seconds(row, "loading_time")) + _seconds(row, "hook_time")
        for row, width in zip(rows, widths, strict=True)
    )
    return (sum(sums), set(widths) == {1}) if rows else None


def _seconds(row: Row, name: str) -> float:
    value = row.get(f"throughput/{name}")
    return float(value) if isinstance(value, int | float) else 0.0


def _figures(rows: Sequence[Row]) -> Iterator[Figure]:
    evaluations = [name for name in _names(rows, "eval/") if name.endswith("bpb")]
    rates = _names(rows, "optim/learning_rate/")
    groups = (
        ("loss", "Training loss", ["train/cross_entropy_loss", "eval/loss", "eval/macro_loss"], "nats per token"),
        ("bits", "Bits per byte", evaluations, "bits per byte"),
        ("speed", "Speed", ["throughput/tokens_per_second"], "tokens per second"),
        ("rates", "Learning rates", rates, "learning rate"),
        ("entropy", "Routing entropy", ["train/router/routing_entropy_mean"], "nats"),
    )
    for key, title, names, unit in groups:
        curves = _different([(_short(name), points) for name in names if (points := _points(rows, name))])
        if curves:
            yield _figure(key, title, curves[:MOST_CURVES], unit)


def _different(curves: Sequence[Curve]) -> list[Curve]:
    """Join the names of equal curves, because the curve drawn last would hide the others."""
    names: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for name, points in curves:
        names.setdefault(tuple(points), []).append(name)
    return [(" = ".join(same), list(points)) for points, same in names.items()]


def _names(rows: Sequence[Row], start: str) -> list[str]:
    return sorted({name for row in rows for name in row if name.startswith(start)})


def _points(rows: Sequence[Row], name: str) -> list[tuple[int, float]]:
    found = [(row[STEP], float(row[name])) for row in rows if isinstance(row.get(name), int | float)]
    width = -(-len(found) // POINTS) if found else 1
    groups = (found[first : first + width] for first in range(0, len(found), width))
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def _figure(key: str, title: str, curves: Sequence[Curve], unit: str) -> Figure:
    series = [{"name": name, "points": points, "tone": TONES[number % len(TONES)]}
              for number, (name, points) in enumerate(curves)]  # fmt: skip
    name, points = curves[0]
    described = f"{name} goes from {points[0][1]:.4g} to {points[-1][1]:.4g}."
    chart = Chart("lines", {"series": series, "x": "step", "unit": unit}, described)
    return Figure(f"training-{key}", title, _table(title, curves), chart, unit)


def _table(title: str, curves: Sequence[Curve]) -> Table:
    """Return a table of at most TABLE_ROWS points of each curve, always with the first and the last training step."""
    steps = sorted({step for _, points in curves for step, _ in points})
    chosen = steps if len(steps) <= TABLE_ROWS else [
        steps[number * (len(steps) - 1) // (TABLE_ROWS - 1)] for number in range(TABLE_ROWS)
    ]  # fmt: skip
    values = [dict(points) for _, points in curves]
    columns = (Column("step", "count"), *(Column(name, "number") for name, _ in curves))
    more = f"{len(chosen)} of {len(steps):,} points." if len(steps) > len(chosen) else ""
    return Table(title, columns, [(step, *(one.get(step) for one in values)) for step in chosen], more=more)


def _short(name: str) -> str:
    """Return the part of a metric's name that tells the curves of one figure apart.
    >>> _short("optim/learning_rate/adamh"), _short("eval/web/bpb"), _short("throughput/tokens_per_second")
    ('adamh', 'eval/web/bpb', 'tokens per second')
    """
    short = name.removeprefix("optim/learning_rate/").removeprefix("throughput/").removeprefix("train/router/")
    return short.replace("_", " ") if "/" not in short else short
