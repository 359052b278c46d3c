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
    with pytest.raises(ColumnError, match="'v' has type string_view"):
        row_sizes(pa.table({"v": pa.array(["x"], pa.string_view())}))
