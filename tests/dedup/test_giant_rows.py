"""The rows of giant components are routed and described; all others are returned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from datakit.dedup.giant_rows import GiantRows, combined
from datakit.dedup.phase_data import Described, Shared
from datakit.dedup.verification.cluster_shingles import schema
from datakit.engine.exchange.exchange import read_buckets
from datakit.engine.exchange.row_buckets import RowBuckets
from datakit.engine.task import TaskContext


def made(components: list[int], first: int) -> pa.Table:
    rows = np.arange(first, first + len(components), dtype=np.uint64)
    numbers = [np.array(components, np.uint64), rows, rows[::-1] * np.uint64(2**40), rows, rows.astype(np.int64)]
    lists = [pa.array([[1, 2]] * len(rows), pa.list_(pa.uint64(), 2)), pa.array([[7]] * len(rows))]
    table = [*numbers, (rows + np.uint64(5)).astype(np.int64), lists[0], lists[1].cast(pa.large_list(pa.uint64()))]
    return pa.table(table, schema=schema(2, []))


def test_giant_rows_are_separated_and_described(tmp_path: Path) -> None:
    shared = Shared(
        RowBuckets(9, 1), [], 2, 5, 0.8, "jaccard", ("longest",), 64, giants=[(3, 4), (8, 2)], giant_buckets=2
    )
    tables = [made([3, 1, 3, 8], 0), made([1, 1], 4), made([8, 3], 6)]
    with GiantRows(TaskContext(str(tmp_path), tmp_path), "0", shared, 1 << 20) as giants:
        others = [giants.take(table)["row"].to_pylist() for table in tables]
    assert others == [[1], [4, 5], []]
    rows = [row for table in read_buckets(str(tmp_path), giants.runs, 0, 2, tmp_path) for row in table.to_pylist()]
    assert sorted((row["component"], row["row"]) for row in rows) == [(3, 0), (3, 2), (3, 7), (8, 3), (8, 6)]
    first, second = giants.described()
    assert (first.component, first.documents, first.high, first.low) == (3, 3, 2**40, 2)
    assert (second.component, second.documents, second.high, second.low) == (8, 2, 0, 3)
    assert sorted(first.sample) == sorted(
        [(1 << 63) - row["length"], row["high"], row["low"]] for row in rows if row["component"] == 3
    )


def test_descriptions_of_several_tasks_are_combined() -> None:
    parts = [Described(9, 2, 4, 1, [[1]]), Described(5, 1, 0, 0, []), Described(9, 3, 2, 8, [[2], [3]])]
    assert combined(parts) == [Described(5, 1, 0, 0, []), Described(9, 5, 2, 8, [[1], [2], [3]])]
