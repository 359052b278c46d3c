"""Forecasts a run for `datakit plan`: its time, its critical path, and how busy its slots will be.

All results are estimates. The work of a step is its text times its stage's measured rate (`estimate.py`). The forecast
then lets the steps run as `engine/scheduler/run_loop.py` would: each step that is ready gets, in the order of the
priorities, as many slots as it has tasks, and its work flows evenly through them. A step's phases are not told apart,
and the start of servers, memory limits and retries are left out, so a real run takes longer.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TASK_BYTES = 64 << 20  # text per task if the number of tasks is unknown: the size of most stages' slices


@dataclass(frozen=True)
class Work:
    """An unfinished step. seconds: estimated CPU-seconds. tasks: how many slots it can use. needs: the labels of the
    unfinished steps that it reads.
    """

    label: str
    seconds: float
    tasks: int
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Forecast:
    """Estimates for a run. seconds: its time. cpu_seconds: the work of all tasks. path: the labels of the steps on the
    critical path, the chain of steps that takes longest even if every step gets all slots it can use; path_seconds: the
    time of this chain. utilisation: cpu_seconds divided by the slots times `seconds`.
    """

    seconds: float
    cpu_seconds: float
    path: tuple[str, ...]
    path_seconds: float
    utilisation: float


def tasks_of(tasks: int | None, text_bytes: int) -> int:
    """Return the number of tasks of a step, estimated from its text if it is unknown."""
    return max(1, tasks if tasks is not None else math.ceil(text_bytes / TASK_BYTES))


def forecast(works: Sequence[Work], slots: int) -> Forecast:
    """Return the forecast for steps in the order of their priorities, most urgent first. slots: those of the run."""
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
    """Return how long the steps take if each gets its slots as described above."""
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
