"""Computes the size in bytes of each row of a table; these sizes determine where files and sorted runs are cut.

A size depends only on the row's values. Arrow's `nbytes` depends on how the rows arrived (chunks, slices, validity
bitmaps), so it must not decide where a file is cut. The sizes are exact for strings, lists, maps and structs at any
depth. Computing them takes one pass over the offsets and copies no data.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from datakit.errors import ColumnError


def row_sizes(table: pa.Table) -> np.ndarray:
    """Return the size in bytes of each row's values, int64 [rows]. Raises ColumnError for an unsupported type."""
    widths = [_width(column.type) for column in table.columns]
    total = np.full(table.num_rows, sum(width or 0 for width in widths), np.int64)
    for name, column, width in zip(table.column_names, table.columns, widths, strict=True):
        if width is not None:
            continue
        start = 0
        for chunk in column.chunks:
            total[start : start + len(chunk)] += _sizes(chunk, name)
            start += len(chunk)
    return total


def _width(kind: pa.DataType) -> int | None:
    """Return the size of every value of a type in bytes, or None if not all values have the same size."""
    if types.is_primitive(kind) or types.is_boolean(kind) or types.is_fixed_size_binary(kind) or types.is_decimal(kind):
        return (kind.bit_width + 7) // 8
    return None


def value_bytes(table: pa.Table) -> int:
    """Return the total size in bytes of the table's values: a string or binary value counts as its length in bytes, a
    list, map or struct as the sum of its parts, any other value as 8 bytes, and a null as 0 bytes.

    A column that is null in all of the table's rows counts as 0 bytes, so the size does not depend on whether such a
    column is in the table.
    """
    return sum(_value_bytes(chunk) for column in table.columns for chunk in column.chunks)


def _value_bytes(array: pa.Array) -> int:
    kind = array.type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return pc.call_function("sum", [pc.call_function("binary_length", [array])]).as_py() or 0
    if types.is_struct(kind):
        return sum(map(_value_bytes, array.flatten()))
    if types.is_map(kind):
        first, last = _offsets(array)[[0, -1]].tolist()
        return sum(_value_bytes(part.slice(first, last - first)) for part in (array.keys, array.items))
    if types.is_nested(kind):
        return _value_bytes(array.flatten())
    return 8 * (len(array) - array.null_count)


def _sizes(array: pa.Array, name: str) -> np.ndarray:
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _sizes(array.storage, name)
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        return np.diff(_offsets(array))
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.MapArray):
        return _list_sizes(array, name)
    if isinstance(array, pa.FixedSizeListArray):
        width = array.type.list_size
        elements = array.values.slice(array.offset * width, len(array) * width)
        return _sizes(elements, name).reshape(len(array), width).sum(axis=1, dtype=np.int64)
    if isinstance(array, pa.StructArray):
        return sum((_sizes(field, name) for field in array.flatten()), np.zeros(len(array), np.int64))
    if isinstance(array, pa.DictionaryArray):
        return _chosen(_sizes(array.dictionary, name), array.indices)
    if isinstance(array, pa.RunEndEncodedArray):
        runs = np.searchsorted(array.run_ends.to_numpy(), array.offset + np.arange(len(array)), side="right")
        return _sizes(array.values, name)[runs]
    if types.is_string_view(kind) or types.is_binary_view(kind):
        lengths = np.frombuffer(array.buffers()[1], np.int32)[::4][array.offset : array.offset + len(array)]
        return np.where(array.is_valid().to_numpy(zero_copy_only=False), lengths.astype(np.int64), 0)
    if types.is_null(kind):
        return np.zeros(len(array), np.int64)
    if (width := _width(kind)) is not None:
        return np.full(len(array), width, np.int64)
    raise ColumnError(f"column {name!r} has type {kind}, which is not supported; cast it to a plain type first")


def _chosen(sizes: np.ndarray, indices: pa.Array) -> np.ndarray:
    """Return `sizes[index]` for each index in `indices`, and 0 for each null."""
    present = indices.is_valid().to_numpy(zero_copy_only=False)
    found = np.zeros(len(indices), np.int64)
    found[present] = sizes[indices.drop_null().to_numpy()]
    return found


def _list_sizes(array: pa.ListArray | pa.LargeListArray | pa.MapArray, name: str) -> np.ndarray:
    """Return each list's size: the sum of its elements' sizes (from a running total) plus 4 bytes for its offset."""
    parts = [array.keys, array.items] if isinstance(array, pa.MapArray) else [array.values]
    before = np.zeros(len(parts[0]) + 1, np.int64)
    np.cumsum(sum(_sizes(part, name) for part in parts), out=before[1:])
    return np.diff(before[_offsets(array)]) + 4


def _offsets(array: pa.Array) -> np.ndarray:
    """Return the offsets, int64 [rows + 1], which are absolute positions in the buffer or child array of the values."""
    if not len(array):
        return np.zeros(1, np.int64)
    kind = array.type
    wide = types.is_large_string(kind) or types.is_large_binary(kind) or types.is_large_list(kind)
    offsets = np.frombuffer(array.buffers()[1], np.int64 if wide else np.int32)
    return offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
