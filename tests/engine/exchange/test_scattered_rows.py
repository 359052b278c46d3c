"""Rows of many tables are gathered as if the tables had been concatenated, but their strings are not copied first."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from datakit.engine.exchange import scattered_rows
from datakit.engine.exchange.scattered_rows import ScatteredRows

SCHEMA = pa.schema(
    [
        ("large", pa.large_string()),
        ("short", pa.string()),
        ("bytes", pa.binary()),
        ("large_bytes", pa.large_binary()),
        ("number", pa.int64()),
        ("tags", pa.list_(pa.string())),
        ("nothing", pa.null()),
    ]
)


def table(first: int, count: int) -> pa.Table:
    """Rows with short and long strings, nulls, and bytes that are not valid UTF-8."""
    numbers = range(first, first + count)
    return pa.table(
        [
            pa.array([None if n % 7 == 3 else "é" * (n % 40) for n in numbers], pa.large_string()),
            pa.array([f"row {n} " * (n % 4) for n in numbers], pa.string()),
            pa.array([b"\xff" * (n % 20) for n in numbers], pa.binary()),
            pa.array([None if n % 2 else b"\x00" * 13 for n in numbers], pa.large_binary()),
            pa.array([None if n % 5 == 0 else n for n in numbers], pa.int64()),
            pa.array([None if n % 6 == 0 else ["tag"] * (n % 3) for n in numbers], pa.list_(pa.string())),
            pa.nulls(count),
        ],
        schema=SCHEMA,
    )


@pytest.mark.parametrize(
    "tables",
    [
        [table(0, 100)],
        [table(0, 50).slice(7, 20), table(50, 0), table(50, 33).slice(3)],
        [pa.concat_tables([table(0, 9), table(9, 30)]).slice(4), table(39, 1)],
        [table(0, 0)],
    ],
    ids=["one", "slices", "chunks", "empty"],
)
@pytest.mark.parametrize("piece_bytes", [1 << 30, 40])
def test_rows_are_those_of_the_concatenated_tables(tables: Sequence[pa.Table], piece_bytes: int) -> None:
    whole = pa.concat_tables(tables).combine_chunks()
    with patch.object(scattered_rows, "PIECE_BYTES", piece_bytes):
        rows = ScatteredRows(tables)
    assert rows.num_rows == whole.num_rows
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(whole.num_rows), 2))
    for wanted in (order, order[:5], order[:0]):
        found = rows.take(wanted)
        found.validate(full=True)
        assert found.equals(whole.take(pa.array(wanted)))
        assert {column.num_chunks for column in found.columns} == {1}


def test_strings_are_not_copied_before_they_are_gathered() -> None:
    tables = [pa.table({"text": pa.array(["a" * 100_000] * 100, pa.large_string())}) for _ in range(5)]
    before = pa.total_allocated_bytes()
    rows = ScatteredRows(tables)
    assert pa.total_allocated_bytes() - before < 1_000_000 < sum(table.nbytes for table in tables)
    assert rows.take(np.array([499, 0]))["text"].to_pylist() == ["a" * 100_000] * 2


def test_strings_in_a_buffer_too_large_for_views() -> None:
    texts = pa.array([f"{number} " + "text " * 10 for number in range(100)], pa.large_string())
    with patch.object(scattered_rows, "LARGEST_BUFFER", 1_000):
        rows = ScatteredRows([pa.table({"text": texts.slice(90, 5)})])
    assert rows.take(np.array([4, 0]))["text"].to_pylist() == [texts[94].as_py(), texts[90].as_py()]
