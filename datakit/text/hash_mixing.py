"""Mixes the bits of 64-bit hashes with splitmix64's finalizer (a bijection on uint64), in numpy arrays and in numba
kernels.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
T = TypeVar("T", np.uint64, np.ndarray)


def mix(value: T) -> T:
    """Return the value, mixed so that every output bit depends on every input bit."""
    value = (value ^ (value >> np.uint64(30))) * MIX_1
    value = (value ^ (value >> np.uint64(27))) * MIX_2
    return value ^ (value >> np.uint64(31))
