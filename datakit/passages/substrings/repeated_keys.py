"""Drops the rows of an exchange that cannot matter because nothing equals them, before they are sorted."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datakit.text.numba_cache import Decorator, cached_njit

SLOTS, MOST_SLOTS = 8, 1 << 25  # slots per row, and the most slots, of one byte

kernel: Decorator = cached_njit()


class RepeatedKeys:
    """Remembers which keys (well mixed 64-bit numbers) were added twice, and some that were not, so that most rows with
    a unique key need not be sorted.
    """

    def __init__(self, rows: int) -> None:
        """rows: how many keys will be added, about."""
        bits = min(MOST_SLOTS, SLOTS * max(1, rows)).bit_length()
        self._seen = np.zeros(1 << bits, np.uint8)

    def add(self, keys: pa.ChunkedArray) -> None:
        """Remember some keys."""
        _add(keys.to_numpy(), self._seen)

    def kept(self, table: pa.Table, column: str) -> pa.Table:
        """Return the rows whose key may have been added twice, and the stretches that repeat themselves."""
        keep = self._seen[table[column].to_numpy() & np.uint64(len(self._seen) - 1)] > 1
        if "repeats" in table.column_names:
            keep |= table["repeats"].to_numpy() > 1
        return table.filter(pa.array(keep))


@kernel
def _add(keys: np.ndarray, seen: np.ndarray) -> None:
    mask = np.uint64(len(seen) - 1)
    for key in keys:
        slot = key & mask
        seen[slot] = min(seen[slot] + 1, 2)
