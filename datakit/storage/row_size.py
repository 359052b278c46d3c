"""How many bytes each row of a table takes, from the rows alone.

Arrow's own `nbytes` depends on how rows arrived (chunks, slices, validity bitmaps); what decides where a file is cut must
not. Exact for strings, lists, maps and structs at any depth; one pass over offsets, no copy of the data.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datakit.errors import ColumnError


def row_sizes(table: pa.Table) -> np.ndarray:
    """int64 [rows]: the bytes of each row's values. Raises ColumnError for a type that cannot be sized by row."""
    total = np.zeros(table.num_rows, np.int64)
    for name, column in zip(table.column_names, table.columns, strict=True):
        start = 0
        for chunk in column.chunks:
            total[start : start + len(chunk)] += _sizes(chunk, name)
            start += len(chunk)
    return total


def _sizes(array: pa.Array, name: str) -> np.ndarray:
    kind, types = array.type, pa.types
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        return np.diff(_offsets(array))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        offsets = _offsets(array)
        elements = array.values if not types.is_map(kind) else pa.StructArray.from_arrays([array.keys, array.items], ["k", "v"])
        before = np.concatenate([[0], np.cumsum(_sizes(elements, name))])
        return np.diff(before[offsets])
    if types.is_fixed_size_list(kind):
        return _sizes(array.flatten(), name).reshape(len(array), -1).sum(axis=1) if not array.null_count else _mean(array)
    if types.is_struct(kind):
        return np.sum([_sizes(field, name) for field in array.flatten()] or [np.zeros(len(array), np.int64)], axis=0)
    if isinstance(kind, pa.ExtensionType):
        return _sizes(array.storage, name)
