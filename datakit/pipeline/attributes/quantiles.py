"""Computes quantiles of a stream of numbers, in at most 16 MiB of memory.

Up to EXACT numbers are kept, and their quantiles are exact. Of more numbers, only counts are kept: how many share their
sign, their exponent and the first 7 bits of their mantissa. The quantiles of these are off by at most 0.4 %. Both
depend only on the numbers, not on their order. A quantile is the smallest number that is not exceeded by the given
share of all numbers (nearest rank), so an exact quantile is always one of the numbers.
"""

from __future__ import annotations

import math

import numpy as np

EXACT = 1 << 20  # numbers
BITS = 19  # of sign, exponent and mantissa
ERROR = 2.0**-8  # the relative error of a quantile that is not exact
_SHIFT, _SIGN = np.uint64(64 - BITS), np.uint64(1 << 63)
_TINY = 1e-300  # smaller numbers count as 0


class Quantiles:
    """The quantiles of the finite numbers that were added."""

    def __init__(self) -> None:
        self.count, self.least, self.most = 0, math.inf, -math.inf
        self.least_positive = math.inf  # the smallest number above 0
        self._kept: list[np.ndarray] = []
        self._counts: np.ndarray | None = None

    def add(self, values: np.ndarray) -> None:
        """Add finite numbers, float64 [N]."""
        if not len(values):
            return
        self.count += len(values)
        self.least, self.most = min(self.least, float(values.min())), max(self.most, float(values.max()))
        self.least_positive = min(self.least_positive, float(values[values > 0].min(initial=math.inf)))
        self._kept.append(values)
        if self._counts is not None or self.count > EXACT:
            self._count_kept()

    @property
    def exact(self) -> bool:
        """True if `at` is exact."""
        return self._counts is None

    def at(self, share: float) -> float:
        """Return the quantile of this share, from 0 to 1, of at least one number."""
        rank = max(math.ceil(share * self.count), 1)
        if rank == self.count:
            return self.most
        if rank == 1:
            return self.least
        if self._counts is None:
            values = np.concatenate(self._kept)
            self._kept = [values]
            return float(np.partition(values, rank - 1)[rank - 1])
        code = int(np.searchsorted(np.cumsum(self._counts), rank))
        return min(max(_middle(code), self.least), self.most)

    def _count_kept(self) -> None:
        if self._counts is None:
            self._counts = np.zeros(1 << BITS, np.int64)
        for values in self._kept:
            codes, counts = np.unique(_codes(values), return_counts=True)
            self._counts[codes] += counts
        self._kept = []


def _codes(values: np.ndarray) -> np.ndarray:
    """Return the leading bits of the numbers as integers that have the order of the numbers, int64 [N]."""
    bits = (values + 0.0).view(np.uint64)  # adding 0 turns -0 into 0
    ordered = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    return (ordered >> _SHIFT).astype(np.int64)


def _middle(code: int) -> float:
    """Return the middle of the numbers with this code."""
    ordered = (code << int(_SHIFT)) | (1 << (int(_SHIFT) - 1))
    bits = ordered ^ (1 << 63) if ordered >> 63 else ordered ^ ((1 << 64) - 1)
    value = float(np.array([bits], np.uint64).view(np.float64)[0])
    return value if abs(value) >= _TINY else 0.0
