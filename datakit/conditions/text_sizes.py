"""Measures the texts of some documents, to count the bytes of text that a rule removes."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from datakit.storage.parquet import open_shard, read_group


def text_bytes(dataset: str, rows: np.ndarray) -> np.ndarray:
    """Return the bytes of text of some rows of a partition, int64 [M]. rows: ascending. Only the row groups that hold
    them are read.
    """
    sizes, first = np.zeros(len(rows), np.int64), 0
    if not len(rows):
        return sizes
    with open_shard(dataset) as shard:
        for group in range(shard.metadata.num_row_groups):
            count = shard.metadata.row_group(group).num_rows
            low, high = np.searchsorted(rows, [first, first + count]).tolist()
            if high > low:
                lengths = pc.call_function("binary_length", [read_group(shard, group, dataset, ["text"])["text"]])
                sizes[low:high] = lengths.to_numpy()[rows[low:high] - first]
            first += count
    return sizes
