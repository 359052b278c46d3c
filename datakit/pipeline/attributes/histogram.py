"""Chooses the bins of a histogram, and counts numbers in them.

The edges of bins are round numbers: multiples of 1, 2 or 5 times a power of ten or, on a logarithmic scale, these
numbers themselves. A bin holds the numbers from its lower edge up to, but not including, its upper edge. The last bin
includes its upper edge, unless the numbers are integers. The bins depend on the smallest number, the median and the
largest number only, so the same attributes give the same histogram.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

LINEAR, LOG, AUTO = "linear", "log", "auto"
SKEWED = 20  # `auto` chooses a logarithmic scale if the largest number exceeds 1 and so many medians
_ROUND = (Decimal(1), Decimal(2), Decimal(5))


@dataclass(frozen=True)
class Histogram:
    """The number of values between each edge and the next. scale: "linear" or "log"."""

    scale: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Extent:
    """The facts on which the choice of bins depends. least_positive: the smallest number above 0; infinite if there is
    none. whole: True if all numbers are integers.
    """

    least: float
    median: float
    most: float
    least_positive: float
    whole: bool


def chosen_scale(wanted: str, extent: Extent) -> str:
    """Return the scale, "linear" or "log"; numbers below 0 need a linear scale."""
    if extent.least < 0 or math.isinf(extent.least_positive):
        return LINEAR
    if wanted == AUTO:
        middle = extent.median or extent.least_positive
        return LOG if extent.most > max(SKEWED * middle, 1) else LINEAR
    return wanted


def edges_of(scale: str, extent: Extent, most_bins: int, rounded: Callable[[float], float]) -> np.ndarray:
    """Return the edges of at most `most_bins` bins, float64, ascending. rounded: rounds an edge to the type of the
    numbers.
    """
    if extent.least == extent.most:
        return np.array([extent.least, extent.most + extent.whole])
    edges = _log_edges(extent, most_bins) if scale == LOG else _linear_edges(extent, most_bins)
    return np.unique([rounded(float(edge)) for edge in edges])


def count_in(edges: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return how many values, float64 [N], are in each bin, int64. Values beyond an outer edge, which differ from it by
    a rounding, count in the nearest bin.
    """
    places = np.searchsorted(edges, values, side="right") - 1
    return np.bincount(np.clip(places, 0, len(edges) - 2), minlength=len(edges) - 1)


def _linear_edges(extent: Extent, most_bins: int) -> list[Decimal]:
    low, high = _decimal(extent.least), _decimal(extent.most + extent.whole)
    exponent = ((high - low) / most_bins).adjusted()
    for step in (one.scaleb(power) for power in range(exponent, exponent + 3) for one in _ROUND):
        if extent.whole and step < 1:
            continue
        first, last = math.floor(low / step), math.ceil(high / step)
        if last - first <= most_bins:
            return [number * step for number in range(first, last + 1)]
    return [low, high]


def _log_edges(extent: Extent, most_bins: int) -> list[Decimal]:
    """Return 0, if it is among the numbers or the bins do not reach the smallest one, and round numbers."""
    low, high = _decimal(extent.least_positive), _decimal(extent.most + extent.whole)
    zero = extent.least == 0
    found = list[Decimal]()
    for steps in (_ROUND, _ROUND[:1]):
        every = [one.scaleb(power) for power in range(low.adjusted(), high.adjusted() + 2) for one in steps]
        first = max(number for number, edge in enumerate(every) if edge <= low)
        last = min(number for number, edge in enumerate(every) if edge >= high)
        found = every[first : max(last, first + 1) + 1]
        if len(found) - 1 + zero <= most_bins:
            return [*[Decimal(0)] * zero, *found]
    return [Decimal(0), *found[-most_bins:]]


def _decimal(value: float) -> Decimal:
    return Decimal(repr(value))
