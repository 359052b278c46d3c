"""Sorting block by block gives the same result as sorting everything at once, and leaves no file behind."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.engine.exchange import sorted_blocks
from datakit.engine.exchange.sorted_blocks import SortedBlocks, sort_rows, sorted_rows

Row = tuple[int, int, str | None]
ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2), st.none() | st.text("abc", max_size=20)), max_size=80)


def table_of(rows: list[Row]) -> pa.Table:
    one, other, name = zip(*rows, strict=True) if rows else ((), (), ())
    columns = [pa.array(one, pa.uint64()), pa.array(map(float, other), pa.float64()), pa.array(name, pa.large_string())]
    return pa.table([*columns, pa.array(range(len(rows)))], names=["one", "other", "name", "order"])


@given(rows=ROWS, cuts=st.lists(st.integers(0, 80), max_size=5), limits=st.tuples(*[st.integers(1, 400)] * 3))
@settings(max_examples=60)
def test_order_is_that_of_one_stable_sort(
    rows: list[Row], cuts: list[int], limits: tuple[int, int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    scratch, whole = tmp_path_factory.mktemp("scratch"), table_of(rows)
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    tables = [whole.slice(first, stop - first) for first, stop in pairwise(bounds)]
    with ExitStack() as stack:
        for name, value in zip(("BLOCK_BYTES", "WINDOW_BYTES", "SAMPLE_BYTES"), limits, strict=True):
            stack.enter_context(patch.object(sorted_blocks, name, value))
        blocks = sort_rows(tables, ("one", "other"), scratch)
        expected = sorted(range(len(rows)), key=lambda row: (rows[row][:2], row))
        for _ in range(2):
            found = list(blocks.merged())
            assert [row for table in found for row in table["order"].to_pylist()] == expected
            assert [name for table in found for name in table["name"].to_pylist()] == [rows[row][2] for row in expected]
    assert blocks.count == len(rows)
    assert not list(scratch.iterdir()), "mapped files are unlinked"


def test_a_key_with_more_rows_than_a_window_is_passed_through(tmp_path: Path) -> None:
    """No yielded table holds all rows with such a key, and the rows with other keys are in order around them."""
    keys = np.random.default_rng(1).integers(0, 1 << 40, 40_000, dtype=np.uint64)
    keys[np.random.default_rng(2).random(40_000) < 0.8] = 1 << 39
    with ExitStack() as stack:
        for name, value in {"WINDOW_BYTES": 32 << 10, "SAMPLE_BYTES": 512}.items():
            stack.enter_context(patch.object(sorted_blocks, name, value))
        blocks = SortedBlocks(["key"], tmp_path)
        for start in range(0, 40_000, 5_000):
            part = {"key": keys[start : start + 5_000], "order": np.arange(start, start + 5_000)}
            blocks.add(sorted_rows(pa.table(part), ["key"]))
        tables = list(blocks.merged())
    assert max(table.num_rows for table in tables) * 16 <= (32 << 10) + 9 * 512
    order = np.concatenate([table["order"].to_numpy() for table in tables])
    assert np.array_equal(order, np.argsort(keys, kind="stable"))
