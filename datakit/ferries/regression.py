"""Compares what a ferry took with earlier records of the same machine kind, and with the limits of the ferry.

A figure has become worse if it exceeds the median of the earlier values by more than its noise band. The band is the
largest of three: a share of the median (SHARE), MADS times the median absolute deviation, which covers 4 standard
deviations of normal noise, and a fixed amount, below which a change does not matter. Median and deviation ignore a few
odd runs; mean and standard deviation do not. SHARE is large enough to cover the noise of a busy machine that
calibration does not remove (docs/measurements.md), and small enough for an increase of 30 % to be found. With a single
earlier record, the deviation is 0, and only the share and the amount apply.

MADS times the deviation is limited to CAP times the median: on a machine so noisy that an increase of 30 % could pass,
passing would prove nothing. Only sound records are a baseline, so a regression does not become the new normal by being
repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from msgspec.structs import replace

from datakit.ferries.ferry import Limits
from datakit.ferries.machine import Machine
from datakit.ferries.record import Failure, Part, Record

RECORDS = 30  # largest number of earlier records with which a run is compared
SHARE = 0.18
CAP = 0.25
MADS = 4 * 1.4826
MIB = 1 << 20
PERFORMANCE = "performance"


@dataclass(frozen=True)
class Figure:
    """A figure that is compared. least: a smaller difference than this is ignored. steady_only: skip it for parts whose
    CPU time depends on chance.
    """

    name: str
    value: Callable[[Part], float]
    least: float
    text: Callable[[float], str]
    steady_only: bool


FIGURES = (
    Figure("CPU time", lambda part: part.calibrated_cpu, 0.5, lambda value: f"{value:.1f} calibrated CPU-s", True),
    Figure("memory", lambda part: float(part.peak_rss), 24 * MIB, lambda value: f"{value / MIB:.0f} MiB", False),
)


def baseline(history: Iterable[Record], ferry: str, scale: float, machine: Machine) -> list[Record]:
    """Return the newest sound records of the same ferry, scale and machine kind, oldest first."""
    same = [
        one
        for one in history
        if one.sound and (one.ferry, one.scale, one.machine) == (ferry, scale, machine)
    ]  # fmt: skip
    return same[-RECORDS:]


def regressions(parts: Sequence[Part], earlier: Sequence[Record]) -> list[Failure]:
    """Return a failure for each figure that exceeds the median of the earlier records by more than its noise band."""
    return [failure for part in parts for figure in FIGURES if (failure := _compared(part, figure, earlier))]


def _compared(part: Part, figure: Figure, earlier: Sequence[Record]) -> Failure | None:
    if figure.steady_only and not part.steady:
        return None
    values = [figure.value(old) for record in earlier for old in record.parts if old.name == part.name]
    if not values:
        return None
    center, value = median(values), figure.value(part)
    allowed = band(values, figure.least)
    if value <= center + allowed:
        return None
    more = f"{value / center - 1:+.0%}" if center else "new"
    return Failure(
        PERFORMANCE,
        f"{part.name} takes more {figure.name}",
        f"{figure.text(value)}, {more}; the median of {len(values)} runs is {figure.text(center)}, with a band of "
        f"{figure.text(allowed)}",
    )


def best_of(first: Sequence[Part], second: Sequence[Part]) -> list[Part]:
    """Return each part of the first measurement, or that of the second if it took less CPU time, with the smaller
    peak memory of both.
    """
    other = {part.name: part for part in second}
    return [_better(part, other.get(part.name, part)) for part in first]


def _better(first: Part, second: Part) -> Part:
    faster = first if first.calibrated_cpu <= second.calibrated_cpu else second
    return replace(faster, peak_rss=min(first.peak_rss, second.peak_rss))


def band(values: Sequence[float], least: float) -> float:
    """Return by how much a value may exceed the median of these values."""
    center = median(values)
    deviation = median(abs(value - center) for value in values)
    return max(SHARE * center, min(MADS * deviation, CAP * center), least)


def beyond_limits(parts: Sequence[Part], limits: Limits) -> Iterator[Failure]:
    """Yield a failure for each limit of the ferry that its measured stages exceed together. The tasks of a cluster are
    counted in the parts of a stage ("run/dedup"); on a single machine, the stage itself includes them.
    """
    stages = [part for part in parts if "/" not in part.name]
    wall, cpu = sum(part.calibrated_wall for part in stages), sum(_cpu_of(part, parts) for part in stages)
    rss = max((part.peak_rss for part in parts), default=0)
    if wall > limits.wall:
        yield Failure(PERFORMANCE, "the time limit is exceeded", f"{wall:.0f} calibrated s of {limits.wall:.0f}")
    if cpu > limits.cpu:
        yield Failure(PERFORMANCE, "the CPU limit is exceeded", f"{cpu:.0f} calibrated CPU-s of {limits.cpu:.0f}")
    if rss > limits.peak_rss:
        yield Failure(
            PERFORMANCE, "the memory limit is exceeded", f"{rss / MIB:.0f} MiB of {limits.peak_rss / MIB:.0f} MiB"
        )


def _cpu_of(stage: Part, parts: Sequence[Part]) -> float:
    inside = sum(part.calibrated_cpu for part in parts if part.name.startswith(f"{stage.name}/"))
    return max(stage.calibrated_cpu, inside)
