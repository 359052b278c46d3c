"""Replaces invalid UTF-8 in all columns except the text column, counts the changed values, and rejects columns with
other invalid values. Parquet, Arrow and CSV files may contain strings that are not valid UTF-8, and decoding them later
would fail. Invalid bytes become U+FFFD, as with Python's `errors="replace"`. The text column is left to the text rules.
Cost: one validation by Arrow at several GB/s. Only a column that fails this validation is processed in Python.
"""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types

from datakit.errors import ColumnError
from datakit.normalize.columns.schema_union import fit, shown
from datakit.normalize.record_counts import RecordCounts
from datakit.printable import one_line


def with_valid_strings(path: str, table: pa.Table, text: str | None, counts: RecordCounts) -> pa.Table:
    """Return the table with invalid UTF-8 replaced, except in the column `text` (None: in all columns). `path` is the
    file of the table.

    Raises ColumnError if a value that is not a string is invalid.
    """
    for index, name in enumerate(table.column_names):
        if name == text:
            continue
        try:
            table.column(index).validate(full=True)
        except pa.ArrowInvalid:
            place = f"{one_line(path)}: column {shown(name)}"
            repaired = pa.chunked_array([_repaired(chunk, name, place, counts) for chunk in table.column(index).chunks])
            table = table.set_column(index, name, repaired)
    return table


def _repaired(array: pa.Array, name: str, place: str, counts: RecordCounts) -> pa.Array:
    kind = array.type
    if types.is_string(kind) or types.is_large_string(kind):
        return _repaired_strings(array, counts)
    if types.is_struct(kind):
        children = [_repaired(child, name, place, counts) for child in array.flatten()]
        return pa.StructArray.from_arrays(children, fields=kind.fields, mask=array.is_null())
    if types.is_list(kind) or types.is_large_list(kind):
        whole = array.take(pa.array(range(len(array)), pa.int64())) if array.offset else array
        values = _repaired(whole.values, name, place, counts)
        return type(array).from_arrays(whole.offsets, values, kind, mask=whole.is_null())
    if types.is_map(kind):
        whole = array.take(pa.array(range(len(array)), pa.int64())) if array.offset else array
        keys, items = (_repaired(child, name, place, counts) for child in (whole.keys, whole.items))
        return pa.MapArray.from_arrays(whole.offsets, keys, items, kind, mask=whole.is_null())
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ColumnError(
            f"{place} has values that are not valid {kind}; leave it out (drop = [{shown(name)}] under [normalize])"
        ) from error
    return array


def _repaired_strings(array: pa.Array, counts: RecordCounts) -> pa.Array:
    values = fit(array, pa.large_binary()).to_pylist()
    texts = [None if value is None else value.decode("utf-8", "replace") for value in values]
    changed = sum(text is not None and text.encode() != value for text, value in zip(texts, values, strict=True))
    counts.counters["normalize/invalid_utf8"] += changed
    return pa.array(texts, array.type)
