"""Spans of a document stay together, wherever tables and partitions end."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.errors import CorruptError
from datakit.passages.write_tables import _ByDocument

ROWS = st.lists(st.integers(0, 12), max_size=40).map(sorted)


@given(ROWS, st.integers(1, 7), st.lists(st.integers(0, 12), max_size=4).map(sorted))
def test_documents_are_never_divided(rows: list[int], size: int, stops: list[int]) -> None:
    table = pa.table({"row": pa.array(rows, pa.uint64()), "start": pa.array(range(len(rows)), pa.uint32())})
    spans = _ByDocument(table.slice(start, size) for start in range(0, len(rows), size))
    found: list[tuple[int, int]] = []
    for stop in [*stops, 13]:
        for part in spans.up_to(stop):
            mine = list(zip(part["row"].to_pylist(), part["start"].to_pylist(), strict=True))
            assert mine and all(row < stop for row, _ in mine)
            assert not found or mine[0][0] > found[-1][0]
            found += mine
    spans.expect_end()
    assert found == list(zip(rows, range(len(rows)), strict=True))


def test_spans_beyond_the_last_partition_are_an_error() -> None:
    table = pa.table({"row": pa.array([3, 9], pa.uint64())})
    spans = _ByDocument(iter([table]))
    assert [part["row"].to_pylist() for part in spans.up_to(5)] == [[3]]
    with pytest.raises(CorruptError, match="no partition has"):
        spans.expect_end()
