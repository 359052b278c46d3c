"""Evaluates a source's `where` (a SQL predicate that selects records) with DuckDB, and applies its `transform` (a
user's function that changes records). DuckDB evaluates the predicate on one chunk at a time, and the records that match
stay in order. A record for which the predicate is null does not match. If a chunk lacks a column that the predicate
reads, that column is null there. If no record has the column, the step fails, since a misspelled name would otherwise
drop every record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from datakit.engine.task import resolve
from datakit.errors import RecipeError
from datakit.normalize.readers.sound_arrays import check_arrays
from datakit.normalize.schema_union import fit_column, unify

ROW = "__row"


class Predicate:
    """A parsed `where`. Creating it raises RecipeError if the SQL is not a predicate."""

    def __init__(self, sql: str) -> None:
        import duckdb  # imported only here, because the import is slow and few sources have a predicate

        self._sql, self._duckdb = sql, duckdb
        self._database = duckdb.connect(config={"threads": 1, "enable_external_access": False})
        self._wanted = self._referenced()

    @property
    def columns(self) -> list[str]:
        """The names of the columns that the predicate reads."""
        return list(self._wanted)

    def matches(self, table: pa.Table, file: str) -> np.ndarray:
        """Return bool [rows], True for matching records. Raises RecipeError if the predicate fails on these records."""
        rows = pa.array(np.arange(table.num_rows))
        records = pa.table([self._column(table, name) for name in self._wanted] + [rows], [*self._wanted, ROW])
        try:
            self._database.register("records", records)
            query = f"SELECT {ROW}, coalesce(({self._sql}), false) AS kept FROM records"
            result = self._database.execute(query).fetchnumpy()
        except self._duckdb.Error as error:
            raise RecipeError(f"where: {self._sql!r} fails on the records of {file}: {self._reason(error)}") from error
        kept = np.zeros(table.num_rows, bool)
        kept[result[ROW]] = result["kept"].astype(bool)
        return kept

    def _column(self, table: pa.Table, name: str) -> pa.ChunkedArray:
        """Return a column with at least the fields that the predicate reads; a missing field is added as null."""
        if name not in table.column_names:
            return pa.chunked_array([pa.nulls(table.num_rows, self._wanted[name])])
        column = table.column(name)
        return fit_column(column, unify(column.type, self._wanted[name]) or column.type)

    def _reason(self, error: Exception) -> str:
        """Return DuckDB's message if it is about the SQL, else the error's type, since other messages quote values."""
        about_sql = (self._duckdb.BinderException, self._duckdb.CatalogException, self._duckdb.ParserException)
        return str(error).split("\n")[0] if isinstance(error, about_sql) else type(error).__name__

    def _referenced(self) -> dict[str, pa.DataType]:
        """Return the columns that the predicate reads, each with a type that names the struct fields read, if any."""
        query = f"SELECT 1 FROM records WHERE ({self._sql})"
        rows = self._database.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
        tree = json.loads(rows[0][0])
        if tree.get("error"):
            raise RecipeError(f"where: {self._sql!r} is not a SQL predicate: {tree['error_message']}")
        wanted: dict[str, pa.DataType] = {}
        for path in sorted(_column_paths(tree)):
            name, *inside = path[1:] if path[0] == "records" and len(path) > 1 else path
            kind = pa.null()
            for field in reversed(inside):
                kind = pa.struct([(field, kind)])
            wanted[name] = unify(wanted.get(name, pa.null()), kind) or kind
        return wanted


def _column_paths(node: Any) -> Iterator[list[str]]:
    if isinstance(node, dict):
        if node.get("class") == "COLUMN_REF":
            yield node["column_names"]
        for value in node.values():
            yield from _column_paths(value)
    elif isinstance(node, list):
        for value in node:
            yield from _column_paths(value)


class Transform:
    """A user's function that maps a record batch to another. Creating it raises RecipeError if the import fails."""

    def __init__(self, name: str) -> None:
        self._name = name
        try:
            self._function = resolve(name)
        except (ImportError, AttributeError) as error:
            raise RecipeError(f"transform {name!r} cannot be imported: {error}") from error

    def apply(self, table: pa.Table) -> pa.Table:
        """Apply the function to one chunk. Raises RecipeError if the function does not return a record batch."""
        batch = table.combine_chunks().to_batches()
        result = self._function(batch[0] if batch else pa.RecordBatch.from_pylist([], table.schema))
        if not isinstance(result, pa.RecordBatch):
            raise RecipeError(f"transform {self._name!r} returned a {type(result).__name__}, not a pyarrow.RecordBatch")
        changed = pa.Table.from_batches([result])
        try:
            check_arrays(changed)
        except pa.ArrowInvalid as error:
            raise RecipeError(f"transform {self._name!r} returned an invalid record batch: {error}") from error
        return changed
