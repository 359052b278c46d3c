"""Selects the values at a path in an Arrow array (see settings/paths.py for the rules), without an object per row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from datakit.normalize.columns.paths_in_types import NoFieldsError, is_any_list


@dataclass(frozen=True)
class Selection:
    """The values at a path in N rows. offsets: int64 [N + 1], the index of each row's first value; None if the path
    leads through no list, so that each row has one value, which may be null.
    """

    values: pa.Array
    offsets: np.ndarray | None = None


def select(array: pa.Array, parts: tuple[str, ...]) -> Selection:
    """Select the values at the rest of a path. Raises NoFieldsError if the path leads into values without fields."""
    kind = array.type
    if types.is_null(kind):
        return Selection(array)
    if is_any_list(kind):
        return _in_lists(array, parts)
    if not parts:
        return Selection(array)
    if types.is_struct(kind):
        place = kind.get_field_index(parts[0])
        return select(_field(array, place), parts[1:]) if place >= 0 else Selection(pa.nulls(len(array)))
    if types.is_map(kind) and (types.is_string(kind.key_type) or types.is_large_string(kind.key_type)):
        key = pa.scalar(parts[0], kind.key_type)
        return select(pc.call_function("map_lookup", [array], pc.MapLookupOptions(key, "last")), parts[1:])
    raise NoFieldsError(kind)


def _field(array: pa.StructArray, place: int) -> pa.Array:
    return pc.call_function("struct_field", [array], pc.StructFieldOptions([place]))


def _in_lists(array: pa.Array, parts: tuple[str, ...]) -> Selection:
    lengths = pc.call_function("list_value_length", [array]).fill_null(0)
    offsets = np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)])
    values = array.flatten()  # without what lies under nulls
    if parts and parts[0].isdecimal():
        places, place = offsets[:-1], int(parts[0])
        present = place < np.diff(offsets)
        chosen = np.where(present, places + min(place, len(values)), 0)
        return select(values.take(pa.array(chosen, mask=~present)), parts[1:])
    inner = select(values, parts)
    return Selection(inner.values, offsets if inner.offsets is None else inner.offsets[offsets])
