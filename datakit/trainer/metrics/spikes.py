"""Finds losses that are far above the recent ones.

A loss is a spike if it exceeds the median of the last 100 logged losses by more than `threshold` times their standard
deviation. The deviation is estimated from the median absolute deviation, so earlier spikes neither hide nor cause an
alarm. While the loss falls quickly, the deviation is larger, so the beginning of a run causes no false alarms. Only
steps that are a multiple of `log.every` enter the history. These are the steps that a resumed run finds in its rows, so
it raises the same alarms as an uninterrupted run.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from datakit.trainer.metrics.json_lines import STEP

WINDOW, FEWEST = 100, 20  # maximum length of the history; minimum length to find a spike
DEVIATIONS = 1.4826  # standard deviations per median absolute deviation of a normal distribution
LEAST = 1e-3  # a deviation below this share of the median does not count, e.g. in a run on a repeated batch
LOSS = "train/loss"


class Spikes:
    """The recent losses of a run. threshold: in standard deviations."""

    def __init__(self, threshold: float, every: int, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._threshold, self._every = threshold, every
        self._losses: deque[float] = deque(maxlen=WINDOW)
        for row in rows:
            if row.get(LOSS) is not None:
                self._add(row[STEP], row[LOSS])

    def check(self, step: int, loss: float) -> float | None:
        """Add a loss to the history; return the median before it if the loss is a spike, otherwise None."""
        found = self._median_below(loss) if len(self._losses) >= FEWEST else None
        self._add(step, loss)
        return found

    def _add(self, step: int, loss: float) -> None:
        if step % self._every == 0:
            self._losses.append(loss)

    def _median_below(self, loss: float) -> float | None:
        median = statistics.median(self._losses)
        deviation = DEVIATIONS * statistics.median(abs(one - median) for one in self._losses)
        return median if loss - median > self._threshold * max(deviation, LEAST * abs(median)) else None
