"""Parses chunks of JSON Lines into columns with pyarrow, keeps strings that look like dates as strings, and leaves to
the line parser the chunks that pyarrow would misread. Strings that look like dates are parsed by pyarrow as timestamps,
which loses the original strings. A chunk with such strings is parsed again with their columns declared as strings, and
the declaration is kept for the following chunks.

The line parser (json_rows.py) gets all other chunks that pyarrow would misread or reject: those in which the number of
objects differs from the number of lines, and those with NaN, infinities, mixed types, lists that start with null,
syntax errors, values that the source's transform cannot take, or floats whose digits matter. pyarrow converts all
numbers of a column to floats if one is a float or does not fit into 64 bits. This loses nothing if all of them are
between -2**53 and 2**53. Ids that are floats must keep their digits as written. Speed: 700 to 1,000 MB/s per core on
real text.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
from pyarrow import types

from datakit.engine.user_code import RequiredText
from datakit.normalize.columns.number_types import LARGEST_EXACT
from datakit.normalize.columns.paths_in_types import mistake
from datakit.normalize.readers.sound_arrays import check_arrays
from datakit.normalize.readers.taken_texts.take import Taken
from datakit.normalize.settings.text_forms import TextForm


class ColumnParser:
    """Parses the chunks of one file, in order, and remembers which columns hold strings that look like dates.

    digits: the column whose numbers must keep their digits as written. texts: the column and the fields in which the
    source's transform requires text; None if it requires none. form: how the text is made of several values, which must
    have the right types. strings: the columns whose values become strings, and so must not be objects or lists.
    """

    def __init__(
        self,
        digits: str,
        texts: RequiredText | None = None,
        form: TextForm | None = None,
        strings: Collection[str] = (),
    ) -> None:
        self._digits, self._texts, self._form, self._strings = digits, texts, form, strings
        self._dates: dict[str, pa.DataType] = {}

    def parse(self, chunk: bytes, lines: int, taken: Taken | None = None) -> pa.Table | None:
        """Return the records of a chunk that has `lines` lines, or None if the chunk needs the line parser. taken: the
        chunk without its texts, and these, if they were taken out of it.
        """
        if taken is None:
            return self._parse(chunk, lines)
        table = self._parse(taken.rest, lines)
        return None if table is None else taken.put_back(table)

    def _parse(self, chunk: bytes | memoryview, lines: int) -> pa.Table | None:
        table = _read(chunk, list(self._dates.items())) if self._dates else None
        table = table if table is not None else _read(chunk, [])
        if table is None:
            return None
        dates = {field.name: only for field in table.schema if (only := _dates_only(field.type)) is not None}
        if dates:
            self._dates |= dates
            table = _read(chunk, [(field.name, _dates_as_strings(field.type)) for field in table.schema])
        if table is None or table.num_rows != lines or not _sound(table):
            return None
        if self._digits in table.column_names and types.is_floating(table.column(self._digits).type):
            return None
        if self._texts is not None and not _has_texts(table.schema, self._texts):
            return None
        if any(name in table.column_names and types.is_nested(table.column(name).type) for name in self._strings):
            return None
        if self._form is not None and mistake(table.schema, self._form) is not None:
            return None
        return table if all(_exact(chunk) for column in table.columns for chunk in column.chunks) else None


def _read(chunk: bytes | memoryview, declared: list[tuple[str, pa.DataType]]) -> pa.Table | None:
    try:
        return pj.read_json(
            pa.BufferReader(chunk),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(chunk) + 1),
            parse_options=pj.ParseOptions(explicit_schema=pa.schema(declared)) if declared else None,
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None  # the line parser reads the chunk, and reports the bad line if there is one


def _sound(table: pa.Table) -> bool:
    try:
        check_arrays(table)
    except pa.ArrowInvalid:
        return False  # the line parser reads the chunk; one cause is a list that starts with null (sound_arrays.py)
    return True


def _has_texts(schema: pa.Schema, expected: RequiredText) -> bool:
    kind = schema.field(expected.column).type if expected.column in schema.names else pa.null()
    if not types.is_list(kind):
        return types.is_null(kind)
    if not types.is_struct(kind.value_type):
        return types.is_null(kind.value_type)
    required = (field.type for field in kind.value_type if field.name in expected.fields)
    return all(types.is_string(one) or types.is_null(one) for one in required)


def _dates_as_strings(kind: pa.DataType) -> pa.DataType:
    if types.is_struct(kind):
        return pa.struct([(field.name, _dates_as_strings(field.type)) for field in kind.fields])
    if types.is_list(kind):
        return pa.list_(_dates_as_strings(kind.value_type))
    return pa.string() if types.is_timestamp(kind) else kind


def _dates_only(kind: pa.DataType) -> pa.DataType | None:
    """Return the type reduced to its timestamps, each declared as a string, or None if it has no timestamps."""
    if types.is_struct(kind):
        parts = [(field.name, part) for field in kind.fields if (part := _dates_only(field.type)) is not None]
        return pa.struct(parts) if parts else None
    if types.is_list(kind):
        part = _dates_only(kind.value_type)
        return pa.list_(part) if part is not None else None
    return pa.string() if types.is_timestamp(kind) else None


def _exact(array: pa.Array) -> bool:
    """Return False if a float is -0 or at least 2**53 in absolute value: it may differ from the integer in the file."""
    kind = array.type
    if types.is_floating(kind):
        values = array.drop_null().to_numpy(zero_copy_only=False)
        return bool((np.abs(values) < LARGEST_EXACT).all()) and not (np.signbit(values) & (values == 0)).any()
    if types.is_struct(kind):
        return all(_exact(field) for field in array.flatten())
    return _exact(array.flatten()) if types.is_list(kind) else True
