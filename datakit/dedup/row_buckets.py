"""Assigns rows to the buckets of the exchanges whose readers need the rows of a few neighboring parts each, and reads
the rows of such parts.

A bucket holds a range of row numbers, about as many as a part has. A task can therefore compute the bucket of any row
from two numbers, and needs no list of all parts. The ranges do not end where parts end. A reader gets all buckets that
overlap its parts, which hold about twice as many rows as it needs on average, and drops the other rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from datakit.dedup.partitions import Part, power_of_two
from datakit.dedup.phase_data import PartRange, RowBuckets
from datakit.engine.exchange.exchange import read_buckets
from datakit.engine.task import TaskContext


def row_buckets(parts: Sequence[Part]) -> RowBuckets:
    """Return as many buckets as there are parts, rounded up to a power of two."""
    return RowBuckets(sum(part.rows for part in parts), power_of_two(len(parts)))


def bucket_of(rows: np.ndarray, buckets: RowBuckets) -> np.ndarray:
    """Return the bucket of each row: int64 [N]. A higher row never has a lower bucket.

    >>> bucket_of(np.arange(5, dtype=np.uint64), RowBuckets(5, 2)).tolist()
    [0, 0, 0, 1, 1]
    """
    return (rows * np.uint64(buckets.count) // np.uint64(max(1, buckets.rows))).astype(np.int64)


def read_rows(runs: Sequence[str], buckets: RowBuckets, work: PartRange, context: TaskContext) -> Iterator[pa.Table]:
    """Yield the rows of a task's parts from the runs of an exchange, whose column `row` holds the row numbers."""
    first, stop = work.rows
    if first == stop or not runs:
        return
    ends = bucket_of(np.array([first, stop - 1], np.uint64), buckets).tolist()
    for table in read_buckets(context.step_directory, runs, ends[0], ends[1] + 1, context.scratch):
        rows = table["row"].to_numpy()
        inside = (rows >= first) & (rows < stop)
        if inside.all():
            yield table
        elif inside.any():
            yield table.filter(pa.array(inside))
