"""Signatures from a tiny range of values are marked as saturated."""

from __future__ import annotations

import numpy as np

from datakit.dedup.minhash.kernels import SATURATED, TINY, is_saturated


def test_minima_from_a_tiny_range_are_saturated() -> None:
    minima = np.full(112, TINY - 1, np.uint32)
    minima[: 112 // 8] = 2**31
    assert is_saturated(minima)
    minima[112 // 8] = TINY
    assert not is_saturated(minima)
    assert SATURATED == 2
