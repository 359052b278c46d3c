"""Applies `conflicts`: what happens to a column whose values have different kinds, such as numbers and objects.

    error     kinds that only strings could hold are an error, which names the column, the types and the files
    string    all values become strings; objects and lists become JSON
    drop      the column is left out if it has values of several kinds
    null      the first value, in the order of files and records, decides the kind; values of other kinds become null

Without an entry, kinds that are not objects, lists or bytes become strings, and other conflicts are errors
(schema_union.py).

With `drop` and `null`, whether there is a conflict is known only when the whole source has been read. Until then, the
values of each kind are carried in a column of their own, whose name ends with the kind, so files never conflict. What
becomes of a value depends on its kind alone, not on the records beside it. A conflict between values of the same kind,
such as two objects with a field of different types, remains an error.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyarrow import types

from datakit.normalize.columns.number_types import is_number
from datakit.normalize.columns.paths_in_types import is_any_list
from datakit.normalize.columns.schema_union import fit_column, is_bytes
from datakit.normalize.columns.time_zones import naive
from datakit.normalize.settings.column_settings import DROP, KIND_MARK, NULL, STRING, base_name
from datakit.sql.database import open_database

VALUES_DROPPED, VALUES_NULLED = "normalize/values_dropped", "normalize/values_nulled"


def kind_of(kind: pa.DataType) -> str:
    """Return the name of the kind of values to which a type belongs."""
    tests = {
        "number": is_number(kind) or types.is_decimal(kind), "boolean": types.is_boolean(kind),
        "string": types.is_string(kind) or types.is_large_string(kind), "date": types.is_temporal(kind),
        "bytes": is_bytes(kind), "list": is_any_list(kind),
    }  # fmt: skip
    return next((name for name, holds in tests.items() if holds), "object")


def with_policies(table: pa.Table, conflicts: Mapping[str, str]) -> pa.Table:
    """Return the table with the columns that have the policy `string` as strings, and with the names of those that have
    `drop` or `null` marked with their kinds.
    """
    if not any(name in conflicts for name in table.column_names):
        return table
    columns, names = list(table.columns), list(table.column_names)
    for place, name in enumerate(names):
        policy = conflicts.get(name)
        if policy == STRING:
            columns[place] = as_strings(columns[place])
        elif policy in (DROP, NULL) and not types.is_null(columns[place].type):
            names[place] = f"{name}{KIND_MARK}{kind_of(columns[place].type)}"
    return pa.table(columns, names=names)


def as_strings(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a column to strings: objects and lists to JSON (by DuckDB, as points in time in UTC), other values as
    `schema_union.fit` does.
    """
    kind = column.type
    if types.is_null(kind) or not types.is_nested(kind):
        return fit_column(column.cast(naive(kind)), pa.string())
    database = open_database()
    database.register("records", pa.table({"value": column.cast(naive(kind))}))
    texts = database.sql("SELECT CASE WHEN value IS NOT NULL THEN to_json(value)::VARCHAR END AS text FROM records")
    return fit_column(texts.to_arrow_table().column(0), pa.string())


def left_out(names: list[str], conflicts: Mapping[str, str]) -> dict[str, str]:
    """Return the columns in the exchange that are not stored, each with the counter of its values.

    names: the names of the columns in the exchange, in the order in which they first occurred.
    """
    kinds: dict[str, list[str]] = {}
    for name in names:
        if KIND_MARK in name and conflicts.get(base_name(name)) in (DROP, NULL):
            kinds.setdefault(base_name(name), []).append(name)
    found: dict[str, str] = {}
    for column, carried in kinds.items():
        found |= {column: ""} if column in names else {}  # it holds only nulls
        if conflicts[column] == DROP and len(carried) > 1:
            found |= dict.fromkeys(carried, VALUES_DROPPED)
        else:
            found |= dict.fromkeys(carried[1:], VALUES_NULLED)
    return found


def settled_values(names: list[str], conflicts: Mapping[str, str], values: Mapping[str, int]) -> dict[str, int]:
    """Return how many values were left out or became null, by counter; nothing for a source without such policies.

    names: as in `left_out`. values: the number of values in each column of the exchange that holds values of one kind.
    """
    if not {DROP, NULL} & set(conflicts.values()):
        return {}
    found = {VALUES_DROPPED: 0, VALUES_NULLED: 0}
    for name, counter in left_out(names, conflicts).items():
        if counter:
            found[counter] += values.get(name, 0)
    return found
