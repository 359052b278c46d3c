"""Chooses the common type of each column and field in a source's files, and converts columns to the common types (e.g.
numbers to strings). Rejects types that cannot be joined, a source with more than 2,000 columns, and a column with more
than 2,000 fields. Every column that occurs in any file is kept. Types are widened by the following rules. Null together
with any other type becomes that type. Two signed or two unsigned integer types become the wider one, and a signed and
an unsigned type become int64. Integers and floats become float64. If digits would be lost, numbers become strings
instead (see number_types.py). Numbers, booleans, dates and strings become strings if a column has more than one of
these kinds. Two structs become one struct with the fields of both, and the element types of lists are widened by the
same rules. Types that no rule joins (such as a struct and a number) cause an error that names both files. A recipe may
set another policy for a column (conflicts.py).

Until the type of a column is known for the whole source, an integer is converted only if the conversion loses nothing
(see number_types.py). A record's value therefore depends only on the record and on the column's type in the whole
source, and not on the other records in the same chunk.

Cost: schemas are united by comparing types alone. Only columns whose types change are converted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from datakit.errors import ColumnError, RefusedError, refuse_all
from datakit.normalize.columns.number_types import Largest, Path, float_texts, is_number, unify_numbers
from datakit.normalize.settings.column_settings import base_name
from datakit.printable import one_line

# maximum number of columns in a source, and of fields in a column: more than any real schema has, yet few enough for
# small Parquet footers and fast Arrow code
MOST_FIELDS = 2_000
NO_LARGE: Largest = {}


def unite(
    schemas: Iterable[tuple[str, pa.Schema]], largest: Largest = NO_LARGE, strict: Collection[str] = ()
) -> pa.Schema:
    """Return the union of the schemas in (file, schema) pairs, with columns in order of first appearance. Raises one
    RefusedError for all columns whose types conflict.

    largest: for each column path, the largest absolute value of the integers in all these files, if above 2**53.
    strict: the columns in which types that only strings could hold conflict.
    """
    kinds: dict[str, pa.DataType] = {}
    origin: dict[str, str] = {}
    refused: dict[tuple[str, str], RefusedError] = {}  # one per file and column, as `schemas` may name a file twice
    for file, schema in schemas:
        for field in schema:
            known = kinds.get(field.name, pa.null())
            joined = unify(known, field.type, largest, (field.name,), field.name in strict)
            if joined is None:
                before, now = (one_line(path) for path in (origin[field.name], file))
                clash = f"{describe(known)} in {before} and {describe(field.type)} in {now}"
                name = shown(base_name(field.name))
                advice = (
                    f"fix one of the files, leave the column out (drop = [{name}] under [normalize]), or store its "
                    f'values as strings (conflicts = {{ {name} = "string" }})'
                )
                refused.setdefault((file, field.name), ColumnError(f"column {name} is {clash}; {advice}"))
                continue
            if joined != known:
                origin[field.name] = file
            kinds[field.name] = joined
            _check_size(field.name, joined, len(kinds), file)
    refuse_all(list(refused.values()))
    return pa.schema(list(kinds.items()))


def _check_size(name: str, kind: pa.DataType, columns: int, file: str) -> None:
    if columns > MOST_FIELDS:
        raise ColumnError(
            f"{one_line(file)} raises the number of different columns above {MOST_FIELDS}; select columns with "
            "a transform"
        )
    if _fields(kind) > MOST_FIELDS:
        raise ColumnError(
            f"{one_line(file)}: column {shown(name)} has more than {MOST_FIELDS} different keys, so it is a "
            "dictionary rather "
            f"than a record; leave it out (drop = [{shown(name)}] under [normalize]), or convert it to a string"
        )


def _fields(kind: pa.DataType) -> int:
    if types.is_struct(kind):
        return sum(1 + _fields(field.type) for field in kind.fields)
    return _fields(kind.value_type) if _is_list(kind) else 0


def shown(name: str) -> str:
    """Quote the name of a column for a message, and truncate it if it is long."""
    return repr(name if len(name) <= 60 else f"{name[:50]}...")


def describe(kind: pa.DataType) -> str:
    """Describe a type for a message, and truncate the description if it is long."""
    text = str(kind)
    return text if len(text) <= 60 else f"{text[:50]}..."


def unify(
    one: pa.DataType, other: pa.DataType, largest: Largest = NO_LARGE, path: Path = (), strict: bool = False
) -> pa.DataType | None:
    """Return the type that can hold the values of both types, or None if no rule joins them.

    largest: as in `unite`. path: the column path of the values, which is the key in `largest`. strict: True if values
    must not become strings for the sake of others.
    """
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if types.is_struct(one) and types.is_struct(other):
        return _unify_structs(one, other, largest, path, strict)
    if _is_list(one) and _is_list(other):
        element = unify(one.value_type, other.value_type, largest, (*path, ""), strict)
        wide = types.is_large_list(one) or types.is_large_list(other)
        return None if element is None else (pa.large_list(element) if wide else pa.list_(element))
    if types.is_nested(one) or types.is_nested(other):
        return None
    if is_bytes(one) or is_bytes(other):
        return pa.large_binary() if is_bytes(one) and is_bytes(other) else None
    if is_number(one) and is_number(other):
        joined = unify_numbers(one, other, largest.get(path, 0))
        return None if strict and types.is_string(joined) else joined
    if strict and not (_is_text(one) and _is_text(other)):
        return None
    wide = types.is_large_string(one) or types.is_large_string(other)
    return pa.large_string() if wide else pa.string()


def _is_text(kind: pa.DataType) -> bool:
    return types.is_string(kind) or types.is_large_string(kind)


def _unify_structs(
    one: pa.DataType, other: pa.DataType, largest: Largest, path: Path, strict: bool
) -> pa.DataType | None:
    fields = {field.name: field.type for field in one.fields}
    for field in other.fields:
        joined = unify(fields.get(field.name, pa.null()), field.type, largest, (*path, field.name), strict)
        if joined is None:
            return None
        fields[field.name] = joined
    return pa.struct(list(fields.items()))


def _is_list(kind: pa.DataType) -> bool:
    return types.is_list(kind) or types.is_large_list(kind)


def is_bytes(kind: pa.DataType) -> bool:
    """Return True for a type whose values are arbitrary bytes."""
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)


def storable(kind: pa.DataType) -> pa.DataType:
    """Return the type used to store `kind`. Nulls and structs without fields become strings, at any depth."""
    if types.is_null(kind):
        return pa.string()
    if types.is_struct(kind):
        return pa.struct([(field.name, storable(field.type)) for field in kind.fields]) if kind.fields else pa.string()
    if types.is_list(kind):
        return pa.list_(storable(kind.value_type))
    return pa.large_list(storable(kind.value_type)) if types.is_large_list(kind) else kind


def plain(table: pa.Table) -> pa.Table:
    """Convert columns of dictionary, view, run-end encoded and extension types to the plain types they represent."""
    target = pa.schema([pa.field(field.name, plain_type(field.type), field.nullable) for field in table.schema])
    if table.schema.equals(target, check_metadata=True):
        return table
    columns = [fit_column(column, field.type) for column, field in zip(table.columns, target, strict=True)]
    return pa.table(columns, schema=target)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type to which `plain` converts `kind`."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_struct(kind):
        return pa.struct([(field.name, plain_type(field.type)) for field in kind.fields])
    if types.is_fixed_size_list(kind) or types.is_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if types.is_large_list(kind):
        return pa.large_list(plain_type(kind.value_type))
    return kind


def fit_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Apply `fit` to every chunk of a column."""
    return pa.chunked_array([fit(chunk, kind) for chunk in column.chunks], kind)


def fit(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert an array to `kind`, a type that `unify`, `plain_type` or `storable` derived from the array's type."""
    if array.type == kind:
        return array
    if isinstance(array, pa.ExtensionArray):
        return fit(array.storage, kind)
    if types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if types.is_dictionary(array.type):
        return fit(array.dictionary_decode(), kind)
    if types.is_struct(array.type):
        return _fit_struct(array, kind)
    if _is_list(kind):
        return _fit_list(array, kind)
    if types.is_floating(array.type) and not types.is_floating(kind):
        array = float_texts(array)
    return pc.cast(array, kind, safe=False)


def _fit_struct(array: pa.StructArray, kind: pa.DataType) -> pa.Array:
    if types.is_string(kind):  # `storable` makes strings of structs without fields
        return pa.array(["{}"] * len(array), pa.string(), mask=array.is_null().to_numpy(zero_copy_only=False))
    have = dict(zip((field.name for field in array.type.fields), array.flatten(), strict=True))
    children = [
        fit(have[field.name], field.type) if field.name in have else pa.nulls(len(array), field.type)
        for field in kind.fields
    ]
    return pa.StructArray.from_arrays(children, fields=kind.fields, mask=array.is_null())


def _fit_list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if types.is_fixed_size_list(array.type):
        array = pc.cast(array, pa.large_list(array.type.value_type))
    maker = pa.LargeListArray if types.is_large_list(kind) else pa.ListArray
    if not len(array):
        return pa.array([], kind)
    # if `array` is a slice of another array, `array.values` still holds the elements of that whole array
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    offsets = pc.call_function("subtract", [array.offsets, first]).cast(
        pa.int64() if types.is_large_list(kind) else pa.int32()
    )
    values = fit(array.values.slice(first, last - first), kind.value_type)
    return maker.from_arrays(offsets, values, kind, mask=array.is_null())
