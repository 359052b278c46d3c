"""Forecasts a run for `datakit plan`: its time, its critical path, and how busy its slots will be.

All results are estimates. The work of a step is the size of its text times the measured rate of its stage
(`estimate.py`). The forecast runs the steps as `engine/scheduler/run_loop.py` would: in order of priority, each ready
step gets up to one slot per task, and its work is divided evenly among these slots. The forecast does not distinguish
the phases of a step, and it ignores the start of servers, memory limits and retries, so a real run takes longer.
"""

from __future__ import annotations

import bisect
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
    place = {work.label: number for number, work in enumerate(works)}
    missing = [{place[label] for label in work.needs if label in place} for work in works]
    readers: list[list[int]] = [[] for _ in works]
    for number, above in enumerate(missing):
        for one in above:
            readers[one].append(number)
    left, now = [work.seconds for work in works], 0.0
    ready = [number for number, above in enumerate(missing) if not above]  # most urgent first
    while ready:
        rates = _rates(works, ready, slots)
        step = min(left[number] / rate for number, rate in rates.items())
        now += step
        for number, rate in rates.items():
            left[number] -= rate * step
        for ended in [number for number in rates if left[number] <= 1e-9]:
            ready.remove(ended)
            for reader in readers[ended]:
                missing[reader].remove(ended)
                if not missing[reader]:
                    bisect.insort(ready, reader)
    return now


def _rates(works: Sequence[Work], ready: Sequence[int], slots: int) -> Mapping[int, int]:
    """Return how many slots each step gets, by its place in `works`."""
    rates, free = dict[int, int](), slots
    for number in ready:
        if free == 0:
            break
        rates[number] = min(free, works[number].tasks)
        free -= rates[number]
    return rates
