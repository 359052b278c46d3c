"""Row sizes depend on the rows alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from datakit.errors import ColumnError
from datakit.storage.row_size import row_sizes, value_bytes


def test_row_sizes_count_values_at_any_depth() -> None:
    table = pa.table(
        {
            "a": pa.array(["xyz", None, "é"], pa.large_string()),
            "b": pa.array([[1, 2], None, []], pa.list_(pa.int16())),
            "c": pa.array([{"d": "ab", "e": True}, None, {"d": "", "e": None}]),
            "f": pa.array([[("k", "vv")], [], None], pa.map_(pa.string(), pa.string())),
            "g": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)),
            "h": pa.nulls(3),
        }
    )
    sizes = np.array([3 + 8 + 3 + 7 + 8, 0 + 4 + 1 + 4 + 8, 2 + 4 + 1 + 4 + 8])
    np.testing.assert_array_equal(row_sizes(table), sizes)
    np.testing.assert_array_equal(row_sizes(table.slice(1, 2)), sizes[1:])
    np.testing.assert_array_equal(row_sizes(pa.concat_tables([table.slice(2), table])), sizes[[2, 0, 1, 2]])
    assert value_bytes(table) == (3 + 2) + 2 * 8 + (2 + 0 + 8) + 3 + 4 * 8
    assert value_bytes(table.slice(1, 2)) == 2 + (0 + 0) + 0 + 2 * 8
    with pytest.raises(ColumnError, match="'v' has type list_view"):
        row_sizes(pa.table({"v": pa.array([["x"]], pa.list_view(pa.string()))}))


def test_row_sizes_count_a_shared_value_in_each_place() -> None:
    words = pa.array(["xyz", None, "é", "xyz"])
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 4], pa.int32()), pa.array(["xyz", None, "é"]))
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3, 4], pa.int32()), words.dictionary_encode())
    table = pa.table(
        {
            "dictionary": words.dictionary_encode(),
            "view": words.cast(pa.string_view()),
            "bytes": words.cast(pa.binary()).cast(pa.binary_view()),
            "lists": lists,
            "runs": runs,
        }
    )
    sizes = np.array([3 * 3 + 3 + 4 + 3, 0 + 0 + 4 + 3, 3 * 2 + 2 + 4 + 0, 3 * 3 + 3 + 4 + 2])
    np.testing.assert_array_equal(row_sizes(table), sizes)
    np.testing.assert_array_equal(row_sizes(table.slice(1, 3)), sizes[1:])
    assert row_sizes(table.slice(0, 0)).tolist() == []
