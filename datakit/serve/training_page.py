"""Composes the page of a training run: its newest metrics, and the curve of its loss."""

from __future__ import annotations

from dataclasses import dataclass

from datakit.errors import counted
from datakit.report.figures import Fact
from datakit.serve.followers import Follower
from datakit.serve.training_state import LOSS

WIDTH, HEIGHT = 600.0, 160.0  # of the drawing, in its own units
TABLE_ROWS = 20
SENTENCES = {
    "running": "This training run is active.",
    "silent": "This training run has written nothing for a long time.",
    "dead": "This training run is not finished, and no process is working on it. Start it again to continue.",
    "done": "This training run is finished.",
}
SHOWN = {  # metrics at the top of the page
    LOSS: "training loss",
    "throughput/tokens_per_second": "tokens per second",
    "throughput/mfu": "MFU",
    "eval/macro_loss": "validation loss",
}


@dataclass(frozen=True)
class TrainingPage:
    """The content of the page. line: the points of the curve, as an SVG polyline needs them. rows: some of its points.
    metrics: the newest value of each metric.
    """

    title: str
    dataset: str
    run: str
    state: str
    sentence: str
    facts: tuple[Fact, ...]
    line: str
    lowest: float | None
    highest: float | None
    rows: tuple[tuple[int, float], ...]
    metrics: tuple[tuple[str, float], ...]
    problems: tuple[str, ...]


def training_page(follower: Follower) -> TrainingPage:
    """Return the content of the page."""
    training, health = follower.training, follower.health()
    state = "done" if health == "ended" else health
    losses = [loss for _, loss in training.curve]
    facts = [Fact("step", training.step, "count")]
    facts += [Fact(title, training.row[name], "number") for name, title in SHOWN.items() if name in training.row]
    lines = [f"{counted(training.unreadable, 'line')} of the metrics cannot be read."] if training.unreadable else []
    return TrainingPage(
        title=follower.entry.dataset,
        dataset=follower.entry.dataset,
        run=follower.entry.name,
        state=state,
        sentence=SENTENCES[state],
        facts=tuple(facts),
        line=_polyline(training.curve),
        lowest=min(losses, default=None),
        highest=max(losses, default=None),
        rows=tuple(_some(training.curve)),
        metrics=tuple(sorted(training.row.items())),
        problems=(*([follower.problem] if follower.problem else []), *lines),
    )


def _polyline(curve: list[tuple[int, float]]) -> str:
    """Return the points of a curve, scaled to the drawing.

    >>> _polyline([(0, 2.0), (10, 1.0)])
    '0.0,0.0 600.0,160.0'
    """
    if len(curve) < 2:
        return ""
    steps, losses = [step for step, _ in curve], [loss for _, loss in curve]
    left, low = min(steps), min(losses)
    across, up = WIDTH / max(1, max(steps) - left), HEIGHT / ((max(losses) - low) or 1.0)
    return " ".join(f"{(step - left) * across:.1f},{HEIGHT - (loss - low) * up:.1f}" for step, loss in curve)


def _some(curve: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return at most TABLE_ROWS evenly spread points of a curve, the first and the last included."""
    if len(curve) <= TABLE_ROWS:
        return curve
    return [curve[number * (len(curve) - 1) // (TABLE_ROWS - 1)] for number in range(TABLE_ROWS)]
