"""Defines the outcome of a finished training run, and makes it from the run's last row of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from datakit.storage.manifest import InputReference
from datakit.trainer import run_manifest
from datakit.trainer.checkpoints.candidates import Say, candidates
from datakit.trainer.config import Run
from datakit.trainer.multihost import is_first
from datakit.trainer.resume import Start

_KEPT = ("train/loss", "train/cross_entropy", "eval/")


@dataclass(frozen=True)
class Outcome:
    """A finished run: its directory, number of steps, last metrics, and the comparison with the expected metrics."""

    directory: str
    steps: int
    figures: dict[str, Any]  # the metrics; the field's name is their key in the manifest and in JSON output
    comparison: dict[str, Any]
    # The step at which training resumed; None: it started at step 0, or the run was already finished.
    resumed_from: int | None = None


def finish(
    run: Run,
    place: run_manifest.RunPlace,
    start: Start,
    mixture: dict[str, Any],
    prediction: dict[str, Any],
    row: Mapping[str, Any],
    inputs: list[InputReference],
    say: Say,
) -> Outcome:
    """Compare the last row of metrics with the prediction, write the run's manifest, and return the outcome."""
    final = next(one for one in candidates([start.folders[0]], say) if one.marker.step == run.steps)
    kept = {name: row[name] for name in row if name.startswith(_KEPT) and not name.endswith("_time")}
    comparison = run_manifest.compare(prediction, kept)
    if "train/loss" not in kept:
        say(f"warning: {place.directory} has no row for step {run.steps:,}, so its training loss is unknown")
    for name, pair in comparison.items():
        source = " (by a law fitted on other text)" if pair["law"] else ""
        measured = "not measured" if pair["measured"] is None else f"measured {pair['measured']:.4f}"
        say(f"{name}: expected {pair['expected']:.4f}{source}, {measured}")
    details = {"figures": kept, "prediction": prediction, "comparison": comparison}
    if is_first():
        run_manifest.finish(place, run, mixture, inputs, details, final)
    return Outcome(place.directory, run.steps, kept, comparison, start.resumed_from)
