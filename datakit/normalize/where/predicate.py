"""Evaluates a source's `where` with DuckDB: selects the records of a chunk for which the predicate is true, and reports
errors without quoting values. DuckDB evaluates the predicate on one chunk at a time, and the records that match stay in
order. The predicate is an expression over the record alone (where/expression.py), and its columns have the same types
in every chunk (where/column_types.py). A record for which the predicate is null does not match. If a chunk lacks a
column that the predicate reads, the column is null in that chunk. If no record has the column, the step fails, since a
misspelled name would otherwise drop every record.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datakit.errors import RecipeError
from datakit.normalize.columns.column_choice import where_paths
from datakit.normalize.columns.schema_union import fit_column, shown, unify
from datakit.normalize.columns.time_zones import naive
from datakit.printable import one_line
from datakit.sql.database import open_database, reason

ROW = "__row"


class Predicate:
    """A parsed `where`. Raises RecipeError if the SQL is not a valid expression.

    types: a schema of the columns that `where` can read, in Arrow's IPC format; a column that is not in it is null.
    """

    def __init__(self, sql: str, types: bytes = b"") -> None:
        import duckdb  # imported only here, because the import is slow and few sources have a predicate

        self._sql, self._duckdb = sql, duckdb
        self._database = open_database()
        self._wanted = self._referenced()
        schema = pa.ipc.read_schema(pa.py_buffer(types)) if types else pa.schema([])
        for name, kind in self._wanted.items():
            if name in schema.names:
                self._wanted[name] = unify(schema.field(name).type, kind) or schema.field(name).type

    @property
    def columns(self) -> list[str]:
        """The names of the columns that the predicate reads."""
        return list(self._wanted)

    def matches(self, table: pa.Table, file: str) -> np.ndarray:
        """Return bool [rows], True for matching records. Raises RecipeError if the predicate fails on these records."""
        rows = pa.array(np.arange(table.num_rows))
        columns = [self._column(table, name, file) for name in self._wanted]
        records = pa.table([*columns, rows], [*self._wanted, ROW])
        try:
            self._database.register("records", records)
            query = f"SELECT {ROW}, coalesce((\n{self._sql}\n), false) AS kept FROM records"
            result = self._database.execute(query).fetchnumpy()
        except self._duckdb.Error as error:
            raise RecipeError(
                f"where: {self._sql!r} fails on the records of {one_line(file)}: {reason(error)}"
            ) from error
        kept = np.zeros(table.num_rows, bool)
        kept[result[ROW]] = result["kept"].astype(bool)
        return kept

    def _column(self, table: pa.Table, name: str, file: str) -> pa.ChunkedArray:
        """Return a column converted to its type for the whole source; a missing column or field is added as null."""
        kind = self._wanted[name]
        if name not in table.column_names:
            return pa.chunked_array([pa.nulls(table.num_rows, kind)])
        column = table.column(name)
        try:
            fitted = converted(column, kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise RecipeError(
                f"where: column {shown(name)} of {one_line(file)} has a value that is not {kind}; declare "
                "another type, such "
                "as string, under the source's `types`"
            ) from error
        return fitted.cast(naive(kind)) if naive(kind) != kind else fitted

    def _referenced(self) -> dict[str, pa.DataType]:
        """Return the columns that the predicate reads, with types that contain only the struct fields that it reads."""
        wanted: dict[str, pa.DataType] = {}
        for path in where_paths(self._sql):
            name, *inside = path.parts
            kind = pa.null()
            for field in reversed(inside):
                kind = pa.struct([(field, kind)])
            if name.lower() == ROW:
                raise RecipeError(f"where: {self._sql!r} reads the column {ROW}, but this name is reserved; rename it")
            wanted[name] = unify(wanted.get(name, pa.null()), kind) or kind
        return wanted


def converted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Convert a column to `kind`, its type for the whole source. Raises ArrowInvalid if a value cannot be converted."""
    if pa.types.is_null(kind) or column.type == kind:
        return column
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
        return pa.chunked_array([_converted_struct(chunk, kind) for chunk in column.chunks], kind)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if text or pa.types.is_nested(kind) or pa.types.is_null(column.type):
        return fit_column(column, kind)
    return column.cast(kind)


def _converted_struct(array: pa.StructArray, kind: pa.DataType) -> pa.StructArray:
    have = {field.name: pa.chunked_array([child]) for field, child in zip(array.type, array.flatten(), strict=True)}
    children = [
        converted(have[field.name], field.type).cast(field.type).combine_chunks()
        if field.name in have and not pa.types.is_null(field.type)
        else pa.nulls(len(array), field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
