"""Makes every string of a table valid UTF-8: Parquet, Arrow and CSV files do not promise it, and later readers crash.

Invalid parts become U+FFFD, counted by value. The text column is left alone: the text rules see to it.
Cost: one validation by Arrow, several GB/s; Python only for a column that is broken.
"""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types

from datakit.errors import ColumnError
from datakit.normalize.record_counts import Findings
from datakit.normalize.schema_union import fit, shown


def with_valid_strings(table: pa.Table, text: str, findings: Findings) -> pa.Table:
    """The table with every string outside the column `text` valid."""
    for index, name in enumerate(table.column_names):
        if name == text:
            continue
        try:
            table.column(index).validate(full=True)
        except pa.ArrowInvalid:
            mended = pa.chunked_array([_valid(chunk, name, findings) for chunk in table.column(index).chunks])
            table = table.set_column(index, name, mended)
    return table


def _valid(array: pa.Array, name: str, findings: Findings) -> pa.Array:
    kind = array.type
    if types.is_string(kind) or types.is_large_string(kind):
        values = fit(array, pa.large_binary()).to_pylist()
        texts = [None if value is None else value.decode("utf-8", "replace") for value in values]
        changed = sum(text is not None and text.encode() != value for text, value in zip(texts, values, strict=True))
        findings.counters["normalize/invalid_utf8"] += changed
        return pa.array(texts, kind)
    if types.is_struct(kind):
        children = [_valid(child, name, findings) for child in array.flatten()]
        return pa.StructArray.from_arrays(children, fields=kind.fields, mask=array.is_null())
    if types.is_list(kind) or types.is_large_list(kind):
        whole = array.take(pa.array(range(len(array)), pa.int64())) if array.offset else array
        values = _valid(whole.values, name, findings)
        return type(array).from_arrays(whole.offsets, values, kind, mask=whole.is_null())
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ColumnError(
            f"column {shown(name)} holds values that are no valid {kind}; leave it out (drop = [{shown(name)}] under "
            "[normalize])"
        ) from error
    return array
