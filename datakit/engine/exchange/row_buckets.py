"""Routes rows to the buckets of exchanges whose readers need the rows of a few neighboring parts each, and reads the
rows of such parts. Documents have row numbers that count through all sources and partitions of a step.

A bucket holds a range of row numbers, about as many as a part has. A task can therefore compute the bucket of any row
from two numbers, and needs no list of all parts. The ranges do not end where parts end. A reader gets all buckets that
overlap its parts, which hold about twice as many rows as it needs on average, and drops the other rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datakit.engine.exchange.exchange import in_pieces, read_buckets
from datakit.engine.task import TaskContext


@dataclass(frozen=True)
class RowBuckets:
    """The buckets of an exchange whose rows are routed by row number. rows: the number of all documents. count: the
    number of buckets, a power of two.
    """

    rows: int
    count: int


def power_of_two(least: float) -> int:
    """Return the smallest power of two that is at least `least` and at least 1."""
    return 1 << max(0, int(np.ceil(np.log2(max(1.0, least)))))


def bucket_of(rows: np.ndarray, buckets: RowBuckets) -> np.ndarray:
    """Return the bucket of each row: int64 [N]. A higher row never has a lower bucket.

    >>> bucket_of(np.arange(5, dtype=np.uint64), RowBuckets(5, 2)).tolist()
    [0, 0, 0, 1, 1]
    """
    return (rows * np.uint64(buckets.count) // np.uint64(max(1, buckets.rows))).astype(np.int64)


def read_between(
    runs: Sequence[str], buckets: RowBuckets, first: int, stop: int, context: TaskContext
) -> Iterator[pa.Table]:
    """Yield the rows of an exchange whose column `row` is in [first, stop)."""
    if first == stop or not runs:
        return
    ends = bucket_of(np.array([first, stop - 1], np.uint64), buckets).tolist()
    for table in in_pieces(read_buckets(context.step_directory, runs, ends[0], ends[1] + 1, context.scratch)):
        rows = table["row"].to_numpy()
        inside = (rows >= first) & (rows < stop)
        if inside.all():
            yield table
        elif inside.any():
            yield table.filter(pa.array(inside))
