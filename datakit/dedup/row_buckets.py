"""Decides how many buckets the exchanges by row number have (`engine/exchange/row_buckets.py`), and reads the rows of a
task's parts from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from datakit.dedup.partitions import Part
from datakit.dedup.phase_data import PartRange
from datakit.engine.exchange.row_buckets import RowBuckets, power_of_two, read_between
from datakit.engine.task import TaskContext


def row_buckets(parts: Sequence[Part]) -> RowBuckets:
    """Return as many buckets as there are parts, rounded up to a power of two."""
    return RowBuckets(sum(part.rows for part in parts), power_of_two(len(parts)))


def read_rows(runs: Sequence[str], buckets: RowBuckets, work: PartRange, context: TaskContext) -> Iterator[pa.Table]:
    """Yield the rows of a task's parts from the runs of an exchange, whose column `row` holds the row numbers."""
    return read_between(runs, buckets, *work.rows, context)
