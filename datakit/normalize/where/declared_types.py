"""Decides from `types` in which types `where` sees its columns, and for which columns the source must be read first.

A type is declared for a column (`year`) or for a field that `where` reads (`meta.year`).
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyarrow import types

from datakit.errors import RecipeError, suggestion
from datakit.normalize.columns.column_choice import where_paths
from datakit.normalize.config import Config
from datakit.normalize.settings.column_settings import DROP, NULL, STRING

DECLARED = {"bool": "bool", "int64": "int64", "float64": "float64", "string": "string", "date": "date32"}


class DeclaredTypes:
    """The declared types of a source's `where`. Raises RecipeError for a declaration that has no effect.

    undeclared: the columns whose types follow from the whole source, at least in part.
    """

    def __init__(self, config: Config) -> None:
        paths, text = where_paths(config.where), config.text_name
        columns = list(dict.fromkeys(path.column for path in paths))
        _check(config, columns, [path.whole for path in paths])
        kinds = {name: pa.type_for_alias(DECLARED[kind]) for name, kind in config.types.items()}
        self._columns = {name: kinds[name] for name in columns if name in kinds}
        self._fields = {path.parts: kinds[path.whole] for path in paths if len(path.parts) > 1 and path.whole in kinds}
        if text in columns:
            self._columns[text] = pa.large_string()
        open_columns = {path.column for path in paths if path.parts not in self._fields}
        self.undeclared: list[str] = [name for name in columns if name in open_columns and name not in self._columns]

    def schema(self, found: Mapping[str, pa.DataType]) -> bytes:
        """Return the schema of the columns that `where` sees, in Arrow's IPC format. found: the types of the undeclared
        columns that the source has.
        """
        kinds = {**self._columns, **found}
        for (column, *inside), kind in self._fields.items():
            kinds[column] = _with_field(kinds.get(column, pa.null()), inside, kind)
        return pa.schema(list(kinds.items())).serialize().to_pybytes()


def _check(config: Config, columns: list[str], paths: list[str]) -> None:
    undecided = next((name for name in columns if config.conflicts.get(name) in (DROP, NULL)), None)
    if undecided is not None:
        raise RecipeError(
            f"conflicts: `where` reads {undecided!r}, but the policy {config.conflicts[undecided]!r} is applied only "
            f"when the whole source has been read; use {STRING!r}"
        )
    known = list(dict.fromkeys([*columns, *paths]))
    extra = next((name for name in config.types if name not in known), None)
    if extra is not None:
        raise RecipeError(f"types: `where` does not read the column {extra!r}; {suggestion(extra, known)}")
    text = config.text_name
    if config.types.get(text, "string") != "string":
        raise RecipeError(f"types: {text!r} is the text column, which always holds strings; cast it in `where`")


def _with_field(kind: pa.DataType, path: list[str], declared: pa.DataType) -> pa.DataType:
    """Return a type in which the field at the path has the declared type."""
    if not path:
        return declared
    fields = {field.name: field.type for field in kind.fields} if types.is_struct(kind) else {}
    fields[path[0]] = _with_field(fields.get(path[0], pa.null()), path[1:], declared)
    return pa.struct(list(fields.items()))
