"""Tracks the columns of a slice's files while they are read, declares the id column a string, and rejects a file
without the text column or with an id column of an unusable type.
"""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types

from datakit.errors import ColumnError, suggestion
from datakit.normalize.config import Config
from datakit.normalize.schema_union import is_bytes, unite

SHOWN_NAMES, SHOWN_NAME = 20, 60  # limits for a message: columns named, and characters per name


class UpstreamColumns:
    """The upstream columns of one slice, except the text column.

    union: the columns of all files so far. Rows are converted to its types, since a new schema would start a new run.
    """

    def __init__(self, config: Config) -> None:
        self._text, self._id = config.text, config.id
        self._by_file: dict[str, pa.Schema] = {}
        self._with_text: set[str] = set()
        self.union = pa.schema([])

    def add(self, file: str, schema: pa.Schema) -> None:
        """Add the columns of a chunk. Raises ColumnError if they conflict with the columns of earlier chunks."""
        if self._text in schema.names:
            self._with_text.add(file)
        others = pa.schema([self._field(file, field) for field in schema if field.name != self._text])
        known = self._by_file.get(file)
        self._by_file[file] = unite([(file, known), (file, others)]) if known is not None else others
        try:
            self.union = unite([("", self.union), (file, others)])
        except ColumnError:
            unite(self._by_file.items())  # raises an error that names the file with the other type
            raise

    def _field(self, file: str, field: pa.Field) -> pa.Field:
        if field.name != self._id:
            return field.remove_metadata()
        if types.is_nested(field.type) or is_bytes(field.type):
            raise ColumnError(
                f"{file}: column {field.name!r} is {field.type}, which cannot be an id; set the source's id to another "
                'column, or to "" for none'
            )
        return pa.field(field.name, pa.string())

    def schemas(self) -> list[tuple[str, str]]:
        """Return (file, serialized schema) for each file that widens the union of the schemas before it."""
        union, result = pa.schema([]), []
        for file, schema in self._by_file.items():
            wider = unite([("", union), (file, schema)])
            if wider != union:
                result.append((file, schema.serialize().to_pybytes().hex()))
            union = wider
        return result

    def check_text(self) -> None:
        """Raise ColumnError if there is a file in which no chunk had the text column."""
        for file, schema in self._by_file.items():
            if file not in self._with_text:
                near = suggestion(self._text, schema.names)
                names = ", ".join(name[:SHOWN_NAME] for name in schema.names[:SHOWN_NAMES])
                names += ", ..." if len(schema.names) > SHOWN_NAMES else ""
                raise ColumnError(
                    f"{file} has no column {self._text!r}; it has {names or 'no columns'}"
                    f"{' (' + near + ')' if near.startswith('did') else ''}; set the source's text to the column "
                    "that holds the text"
                )
