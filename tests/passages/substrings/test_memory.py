"""The memory of a task does not grow with a bucket, although a merged run holds the bucket as one table."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from datakit.engine.exchange.row_buckets import RowBuckets
from datakit.engine.task import TaskContext, TaskResult
from datakit.passages.config import SearchConfig
from datakit.passages.phase_data import Search, Shared
from datakit.passages.substrings import tasks
from datakit.passages.substrings.rows import STRETCH, TEXT

BATCHES, ROWS = 100, 1 << 15
BOUND = 200 << 20  # without pieces: 300 MiB
Task = Callable[[dict[str, Any], dict[str, Any], TaskContext], TaskResult]


def stretches(first: int) -> list[Any]:
    """Equal stretches of different documents."""
    same = (np.full(ROWS, value) for value in (7, 8, 9))
    return [*same, np.arange(first, first + ROWS), *(np.full(ROWS, value) for value in (0, 20, 1, 0, 0))]


def texts(first: int) -> list[Any]:
    """Texts of one substring each, none of which is repeated."""
    plain = [f"{number:032}".encode() for number in range(first, first + ROWS)]
    return [np.arange(first, first + ROWS), np.zeros(ROWS), plain, np.zeros(ROWS)]


@pytest.mark.parametrize(
    ("task", "schema", "columns"),
    [(tasks.compare_stretches, STRETCH, stretches), (tasks.compare_substrings, TEXT, texts)],
)
def test_a_large_bucket_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Task, schema: pa.Schema, columns: Callable[[int], list[Any]]
) -> None:
    batches = [
        pa.record_batch(
            [pa.array(one, field.type) for one, field in zip(columns(number * ROWS), schema, strict=True)],
            schema=schema,
        )
        for number in range(BATCHES)
    ]
    bucket = pa.Table.from_batches(batches)
    monkeypatch.setattr(tasks, "read_buckets", lambda *_: iter([bucket]))
    search = Search("equal", 0, SearchConfig("substring", min_bytes=32, ignore=()))
    shared = msgspec.to_builtins(Shared([search], [], 1, RowBuckets(BATCHES * ROWS, 1)))
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))  # never freed: buffers from it may live until the process ends
    pa.set_memory_pool(pool)
    try:
        result = task({"bucket": 0}, shared, TaskContext(str(tmp_path), tmp_path))
    finally:
        pa.set_memory_pool(before)
    assert result.records == BATCHES * ROWS
    assert pool.max_memory() < BOUND
