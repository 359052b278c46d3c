"""Chooses the type that holds all numbers of a column, given their types and the largest integer; converts floats to
strings.

A float64 represents every integer up to 2**53 exactly. If a column has floats and also a larger integer, its values
become strings, so that no digit is lost. Signed and unsigned integers in one column become int64 or, if one of them is
too large for that, strings.

A float with an integral value up to 2**53 becomes the same string as the equal integer. An integer's string is
therefore the same even if the integer was first converted to a float because its chunk also contains floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

LARGEST_EXACT = 1 << 53  # float64 represents every integer up to this one exactly
LARGEST_INT64 = (1 << 63) - 1
_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_FLOATS = (pa.float16(), pa.float32(), pa.float64())

Path: TypeAlias = tuple[str, ...]  # the name of a column, then the names of nested fields ("" for a list's elements)
Largest: TypeAlias = Mapping[Path, int]  # the largest absolute value of the integers at a path, if above 2**53


def is_number(kind: pa.DataType) -> bool:
    """Return True for integer and float types."""
    return types.is_integer(kind) or types.is_floating(kind)


def unify_numbers(one: pa.DataType, other: pa.DataType, largest: int) -> pa.DataType:
    """Return the type that holds numbers of both types. largest: the largest absolute value of the integers among these
    numbers, or 0 if none is above 2**53.
    """
    if types.is_integer(one) != types.is_integer(other):
        return pa.float64() if largest <= LARGEST_EXACT else pa.string()
    for family in (_SIGNED, _UNSIGNED, _FLOATS):
        if one in family and other in family:
            return max(one, other, key=family.index)
    return pa.int64() if largest <= LARGEST_INT64 else pa.string()


def largest_integers(table: pa.Table) -> dict[Path, int]:
    """Return the largest absolute value of the integers at each path where it is above 2**53."""
    found: dict[Path, int] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        for chunk in column.chunks:
            for path, value in _largest(chunk, (name,)):
                found[path] = max(value, found.get(path, 0))
    return found


def _largest(array: pa.Array, path: Path) -> Iterator[tuple[Path, int]]:
    kind = array.type
    if kind in (pa.int64(), pa.uint64()):
        values = array.drop_null().to_numpy()
        value = max(-int(values.min()), int(values.max())) if len(values) else 0
        if value > LARGEST_EXACT:
            yield path, value
    elif types.is_struct(kind):
        for field, child in zip(kind.fields, array.flatten(), strict=True):
            yield from _largest(child, (*path, field.name))
    elif types.is_list(kind) or types.is_large_list(kind):
        yield from _largest(array.flatten(), (*path, ""))


def float_texts(floats: pa.Array) -> pa.StringArray:
    """Convert floats to strings: integral values up to 2**53 as integers, other values as Arrow formats a float64."""
    values = floats.cast(pa.float64())
    plain = values.fill_null(0).to_numpy(zero_copy_only=False)
    integral = (np.abs(plain) <= LARGEST_EXACT) & (np.trunc(plain) == plain)
    digits = pa.array(plain[integral].astype(np.int64)).cast(pa.string())
    texts = pc.call_function("replace_with_mask", [values.cast(pa.string()), pa.array(integral), digits])
    return pc.call_function("replace_with_mask", [texts, values.is_null(), pa.scalar(None, pa.string())])
