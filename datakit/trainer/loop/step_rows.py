"""Makes the row of metrics of each completed step, logs the row if it is due, and shows the run's progress.

A row is due every `log.every` steps, after the last step and each evaluation, and if it holds a rare metric such as an
alarm. The row of a step that saves or evaluates is logged again with more metrics; of two rows of a step, the later one
counts. The row of a step whose results are NaN is always logged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from datakit.trainer.checkpoints.candidates import Say
from datakit.trainer.config import Run
from datakit.trainer.device_feed import BatchSource, stage_at
from datakit.trainer.loop.in_flight import Completed
from datakit.trainer.metrics.json_lines import has_rows, read_metrics
from datakit.trainer.metrics.progress_line import Progress
from datakit.trainer.metrics.spikes import WINDOW, Spikes
from datakit.trainer.metrics.step_metrics import StepMetrics, training_flops
from datakit.trainer.metrics.trackers import Trackers, open_trackers
from datakit.trainer.models.weights import parameter_count
from datakit.trainer.multihost import is_first
from datakit.trainer.norms import WATCHABLE
from datakit.trainer.resume import Start
from datakit.trainer.step import Trainer


class StepRows:
    """The rows of a run's steps. evaluates_at: returns True if there is an evaluation after a step."""

    def __init__(
        self,
        run: Run,
        directory: str,
        trainer: Trainer,
        source: BatchSource,
        start: Start,
        evaluates_at: Callable[[int], bool],
        say: Say,
    ) -> None:
        self._run, self._source, self._evaluates_at = run, source, evaluates_at
        mixture, first = source.record(), is_first()
        self._trackers = _trackers(run, directory, trainer, mixture, start.step, say) if first else Trackers(())
        counts, flops = dict(start.counts), training_flops(run, source.outline(start.step))
        logged = has_rows(directory)
        stage = stage_at(mixture, counts["sequences"] - 1) if logged else None
        rows = read_metrics(directory)[-WINDOW * run.log.every :] if first and logged else []
        spikes = Spikes(run.log.spike, run.log.every, rows)
        self._metrics = StepMetrics(run, trainer, mixture, start.norms, counts, flops, stage, spikes, directory, say)
        self._progress = Progress(run.steps, run.log.progress_seconds, say)
        self.restart_clock()

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of tokens and sequences trained on so far."""
        return dict(self._metrics.counts)

    def restart_clock(self) -> None:
        """Let the duration of the next step begin now, e.g. after a compilation, so that the rate shown excludes it."""
        self._turn = time.perf_counter()

    def complete(self, one: Completed) -> dict[str, Any]:
        """Make and return the row of a completed step; log it if it is due, and show the progress."""
        seconds = {"duration": one.duration, "loading_time": one.waited, "hook_time": 0.0}
        row = self._metrics.row(one.step, one.results, one.placed, seconds)
        if not one.finite or self._due(one.step, row):
            row |= {f"data/{name}": value for name, value in self._source.snapshot(one.step).items()}
            self._trackers.log(one.step, row)
        if one.finite:
            before, self._turn = self._turn, time.perf_counter()
            self._progress.step(one.step, one.placed.tokens, self._turn - before, row)
        return row

    def log(self, step: int, row: Mapping[str, Any]) -> None:
        """Log the row of a step once more, with more metrics, if it is due."""
        if self._due(step, row):
            self._trackers.log(step, row)

    def close(self) -> None:
        """Close all trackers."""
        self._trackers.close()

    def _due(self, step: int, row: Mapping[str, Any]) -> bool:
        last = step == self._run.steps
        return step % self._run.log.every == 0 or last or self._evaluates_at(step) or _is_rare(row)


def _trackers(run: Run, directory: str, trainer: Trainer, mixture: dict[str, Any], step: int, say: Say) -> Trackers:
    config = run.content(mixture) | {"mixture": mixture, "parameter_count": parameter_count(trainer.table)}
    name = f"{run.name}-{Path(directory).name.rpartition('-')[2]}"
    return open_trackers(directory, step, run.log.trackers, run.log.project, name, config, say)


def _is_rare(row: Mapping[str, Any]) -> bool:
    """Return True if a row holds rare metrics, which are logged regardless of `log.every`."""
    rare = ("eval/", "alarm/", "mixture/", *(f"{kind}/" for kind in WATCHABLE))
    return any(name.startswith(rare) or isinstance(value, list) for name, value in row.items())
