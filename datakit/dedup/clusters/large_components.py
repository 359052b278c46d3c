"""Counts the documents of large components while their labels pass by, piece by piece, in little memory.

A component is counted in a piece only if at least one row in COUNTED_SHARE of the piece belongs to it. So at most
COUNTED_SHARE components are counted in a piece, and a count lacks at most one row in COUNTED_SHARE of all rows. Cost:
about 20 ns per row.
"""

from __future__ import annotations

import numpy as np

from datakit.storage.ids import top_bits
from datakit.text.hash_mixing import mix

COUNTED_SHARE = 1 << 14
CELLS = 1 << 16


class LargeComponents:
    """The components of which a task sees at least `least` rows."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._components, self._counts = np.empty(0, np.uint64), np.empty(0, np.int64)

    def add(self, components: np.ndarray) -> None:
        """Count the rows of a piece. components: the component of each row."""
        least = max(1, len(components) // COUNTED_SHARE)
        cells = top_bits(mix(components), CELLS)
        some = components[(np.bincount(cells, minlength=CELLS) >= least)[cells]]
        found, counts = np.unique(some, return_counts=True)
        every = np.concatenate([self._components, found[counts >= least]])
        self._components, places = np.unique(every, return_inverse=True)
        weights = np.concatenate([self._counts, counts[counts >= least]])
        self._counts = np.bincount(places, weights, len(self._components)).astype(np.int64)

    def found(self) -> list[tuple[int, int]]:
        """Return the large components, and the number of rows of each that were counted."""
        large = self._counts >= self._least
        return list(zip(self._components[large].tolist(), self._counts[large].tolist(), strict=True))
