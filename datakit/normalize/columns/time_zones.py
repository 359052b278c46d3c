"""Removes time zones from types, so that `where` sees points in time as dates and times in UTC on every machine."""

from __future__ import annotations

import pyarrow as pa


def naive(kind: pa.DataType) -> pa.DataType:
    """Return the type without time zones: a point in time becomes the date and time in UTC."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit)
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, naive(field.type)) for field in kind.fields])
    if pa.types.is_large_list(kind):
        return pa.large_list(naive(kind.value_type))
    return pa.list_(naive(kind.value_type)) if pa.types.is_list(kind) else kind
