"""Forecasts a run for `datakit plan`: its time, its critical path, and how busy its slots will be.

All results are estimates. The work of a step is the size of its text times the measured rate of its stage
(`estimate.py`). The forecast runs the steps as `engine/scheduler/run_loop.py` would: in order of priority, each ready
step gets up to one slot per task, and its work is divided evenly among these slots. The forecast does not distinguish
the phases of a step, and it ignores the start of servers, memory limits and retries, so a real run takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TASK_BYTES = 64 << 20  # text per task if the number of tasks is unknown; most stages' tasks have this size


@dataclass(frozen=True)
class Work:
    """An unfinished step. seconds: estimated CPU-seconds. tasks: the number of slots that the step can use. needs: the
    labels of the unfinished steps that it reads.
    """

    label: str
    seconds: float
    tasks: int
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Forecast:
    """Estimates for a run. seconds: its time. cpu_seconds: the work of all tasks. path: the labels of the steps on the
    critical path, the chain of steps that takes longest even if every step gets all the slots that it can use.
    path_seconds: the time of this chain. utilisation: `cpu_seconds` divided by the product of the slots and `seconds`.
    """

    seconds: float
    cpu_seconds: float
    path: tuple[str, ...]
    path_seconds: float
    utilisation: float


def tasks_of(tasks: int | None, text_bytes: int) -> int:
    """Return the number of tasks of a step. If it is unknown, it is estimated from the text."""
    return max(1, tasks if tasks is not None else math.ceil(text_bytes / TASK_BYTES))


def forecast(works: Sequence[Work], slots: int) -> Forecast:
    """Return the forecast for `works`, which are sorted by priority, most urgent first. slots: the slots of the run."""
    path, path_seconds = _critical_path(works, slots)
    seconds, total = _seconds(works, slots), math.fsum(work.seconds for work in works)
    return Forecast(seconds, total, path, path_seconds, total / (slots * seconds) if seconds else 0.0)


def _critical_path(works: Sequence[Work], slots: int) -> tuple[tuple[str, ...], float]:
    by_label = {work.label: work for work in works}
    found: dict[str, tuple[float, tuple[str, ...]]] = {}

    def until(label: str) -> tuple[float, tuple[str, ...]]:
        if label not in found:
            work = by_label[label]
            before = max((until(above) for above in work.needs), default=(0.0, ()))
            found[label] = (before[0] + work.seconds / min(slots, work.tasks), (*before[1], label))
        return found[label]

    seconds, path = max((until(label) for label in by_label), default=(0.0, ()))
    return path, seconds


def _seconds(works: Sequence[Work], slots: int) -> float:
    """Return how long the steps take if they get slots as the module's docstring describes."""
    left = {work.label: work.seconds for work in works}
    now = 0.0
    while left:
        rates = _rates([work for work in works if work.label in left and not left.keys() & set(work.needs)], slots)
        step = min(left[label] / rate for label, rate in rates.items())
        now += step
        for label, rate in rates.items():
            left[label] -= rate * step
        left = {label: work for label, work in left.items() if label not in rates or work > 1e-9}
    return now


def _rates(ready: Sequence[Work], slots: int) -> Mapping[str, int]:
    rates, free = dict[str, int](), slots
    for work in ready:
        if free > 0:
            rates[work.label] = min(free, work.tasks)
            free -= rates[work.label]
    return rates
