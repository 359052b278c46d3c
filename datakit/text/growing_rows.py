"""Lengthens the arrays in which kernels collect rows whose number is not known in advance. A full array is
copied to one of twice its length, so all copies together move fewer rows than the last array has.
"""

from __future__ import annotations

import numpy as np

from datakit.text.numba_cache import Decorator, cached_njit

kernel: Decorator = cached_njit()


@kernel
def with_room(rows: np.ndarray, used: int) -> np.ndarray:
    """Return the array, or a copy of twice the length if all of its rows are used."""
    if used < len(rows):
        return rows
    longer = np.empty((2 * len(rows), rows.shape[1]), rows.dtype)
    longer[:used] = rows[:used]
    return longer
