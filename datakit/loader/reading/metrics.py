"""Counts rows per component, batches, tokens, padding, reads, pool hits and evictions; sums loading and read times; and
adds TensorStore's own counts. TensorStore counts for the whole process, so its counts include what others read, such
as the loaders of validation sets, and checkpoints, which are TensorStore's too.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from datakit.cache.zarr_arrays import tensorstore_metrics
from datakit.loader.reading.batch import Batch

COUNTED = ("batches", "tokens", "padding", "reads", "bytes_read", "hits", "misses", "evictions")


class Metrics:
    """Thread-safe named counters."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._lock = threading.RLock()
        self._values: dict[str, float] = dict.fromkeys(COUNTED, 0) | {"loading_seconds": 0.0, "read_seconds": 0.0}
        self._rows = np.zeros(len(self._names), np.int64)
        self._before = tensorstore_metrics()

    def add(self, **amounts: float) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self._values[name] += amount

    def add_batch(self, batch: Batch) -> None:
        real = int(batch.lengths.sum())
        rows = np.bincount(batch.components[batch.components >= 0], minlength=len(self._names))
        with self._lock:
            self.add(batches=1, tokens=real, padding=batch.tokens.size - real)
            self._rows += rows

    def snapshot(self) -> dict[str, float]:
        """Return all counters, and `hit_rate`: the share of rows whose block was in memory when a batch needed it. The
        names of what TensorStore has counted since this object was made begin with `tensorstore/`.
        """
        with self._lock:
            values = dict(self._values)
            rows = {f"rows/{name}": int(n) for name, n in zip(self._names, self._rows, strict=True)}
        asked = values["hits"] + values["misses"]
        theirs = {name: count - self._before.get(name, 0) for name, count in tensorstore_metrics().items()}
        return values | rows | {"hit_rate": values["hits"] / asked if asked else 1.0} | theirs
