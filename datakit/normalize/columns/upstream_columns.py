"""Tracks the columns of a slice's files while they are read, gives the id column the type string, recognizes documents
that datakit wrote, and rejects a file without the text column or with an id column of an unusable type. Also notes
which of the paths that settings name occur in the slice; the plan reports a path that occurs in none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice

import pyarrow as pa
from pyarrow import types

from datakit.errors import ColumnError, RefusedError, suggestion
from datakit.normalize.columns.column_choice import MOST_NAMES, ColumnChoice, wanted_paths
from datakit.normalize.columns.number_types import Path, largest_integers
from datakit.normalize.columns.paths_in_types import is_in, names_in
from datakit.normalize.columns.schema_union import is_bytes, unite
from datakit.normalize.config import Config
from datakit.normalize.settings.column_settings import base_name, strict_columns
from datakit.printable import one_line
from datakit.storage.ids import ids_from_arrow

LEADING = pa.schema(  # the first columns of every document that datakit writes
    [
        pa.field("id", pa.string(), False),
        pa.field("text", pa.large_string(), False),
        pa.field("source", pa.string(), False),
        pa.field("source_id", pa.string()),
    ]
)

SHOWN_NAMES, SHOWN_NAME = 20, 60  # limits for a message: number of columns named, and characters per name


class UpstreamColumns:
    """The upstream columns of one slice that are carried to the output, except the text column.

    everything: True if all columns that are read belong to them.

    union: the schema with the columns of all files read so far. Rows are converted to its types, so that their schema
    changes less often: each change starts a new run in the exchange.
    documents: True if all chunks read so far hold documents that datakit wrote.
    largest: for each column path, the largest absolute value of the integers read so far, if above 2**53.
    """

    def __init__(self, config: Config, everything: bool = False) -> None:
        self._text, self._id, self._setting = config.text_column, config.id, config
        self._carries = (lambda name: True) if everything else ColumnChoice(config).carries
        self._strict = strict_columns(config.conflicts)
        self._wanted = dict(enumerate(wanted_paths(config)))  # those that no chunk has had so far
        self._names: dict[str, None] = {}
        self._by_file: dict[str, pa.Schema] = {}
        self._with_text: set[str] = set()
        self.union: pa.Schema = pa.schema([])
        self.documents: bool = True
        self.largest: dict[Path, int] = {}

    def add(self, file: str, table: pa.Table) -> None:
        """Add the columns of a chunk. Raises RefusedError if they conflict with the columns of earlier chunks."""
        schema = table.schema
        self.documents = self.documents and is_documents(table)
        if any(is_in(schema, path) for path in self._setting.text_paths):
            self._with_text.add(file)
        self._note_paths(schema)
        for path, value in largest_integers(table).items():
            self.largest[path] = max(value, self.largest.get(path, 0))
        others = pa.schema([self._field(file, field) for field in self._others(schema)])
        known = self._by_file.get(file)
        self._by_file[file] = (
            unite([(file, known), (file, others)], self.largest, self._strict) if known is not None else others
        )
        try:
            self.union = unite([("", self.union), (file, others)], self.largest, self._strict)
        except RefusedError:
            # raises an error that names both files, unlike the error caught here
            unite(self._by_file.items(), self.largest, self._strict)
            raise

    def _others(self, schema: pa.Schema) -> Iterator[pa.Field]:
        return (field for field in schema if field.name != self._text and self._carries(field.name))

    def _note_paths(self, schema: pa.Schema) -> None:
        if self._wanted:
            schema = pa.schema([pa.field(base_name(field.name), field.type) for field in schema])
            self._wanted = {place: one for place, one in self._wanted.items() if not is_in(schema, one.path)}
            self._names |= dict.fromkeys(islice(names_in(schema), MOST_NAMES))

    def absent(self) -> list[int]:
        """Return the numbers, in the list of `wanted_paths`, of the paths that no record of the slice has."""
        return list(self._wanted)

    def names(self, unread: Iterable[str] = ()) -> list[str]:
        """Return the names of columns and fields in the slice, for messages; none if no path is absent. unread: the
        columns that readers did not pass on.
        """
        return list({**self._names, **dict.fromkeys(unread)})[:MOST_NAMES] if self._wanted else []

    def _field(self, file: str, field: pa.Field) -> pa.Field:
        if field.name != self._id:
            return field.remove_metadata()
        if types.is_nested(field.type) or is_bytes(field.type):
            raise ColumnError(
                f"{one_line(file)}: column {field.name!r} is {field.type}, which cannot be an id; set the "
                "source's `id` to "
                'another column, or to "" for none'
            )
        return pa.field(field.name, pa.string())

    def schemas(self) -> list[tuple[str, str]]:
        """Return (file, schema) for each file whose schema widens the union of the earlier files' schemas. Each schema
        is in Arrow's IPC format, as hex digits.
        """
        union, result = pa.schema([]), []
        for file, schema in self._by_file.items():
            wider = unite([("", union), (file, schema)], self.largest, self._strict)
            if wider != union:
                result.append((file, schema.serialize().to_pybytes().hex()))
            union = wider
        return result

    def check_text(self, begun: Collection[str], unread: Iterable[str] = ()) -> None:
        """Raise ColumnError if there is a file among `begun` in which no chunk had the text column.

        begun: the files that were read from their start. A file read from a later place is exempt, because its
        remaining records need not have a text. unread: the columns that readers did not pass on.
        """
        for file, schema in self._by_file.items():
            if file in begun and file not in self._with_text:
                raise ColumnError(self._without_text(one_line(file), [*schema.names, *unread]))

    def _without_text(self, file: str, known: list[str]) -> str:
        if self._setting.text_form is not None:  # the fields of columns are worth naming, too
            known = list(dict.fromkeys([*known, *self._names]))
        names = ", ".join(one_line(name[:SHOWN_NAME]) for name in known[:SHOWN_NAMES])
        names += ", ..." if len(known) > SHOWN_NAMES else ""
        paths = list(self._setting.text_paths)
        near = suggestion(paths[0].whole, known)
        has = f"it has {names or 'no columns'}{' (' + near + ')' if near.startswith('did') else ''}"
        if len(paths) > 1:
            read = ", ".join(repr(path.whole) for path in paths)
            return f"{file} has none of the columns that `text` reads ({read}); {has}; change the source's `text`"
        return (
            f"{file} has no column {paths[0].whole!r}; {has}; set the source's `text` to the name of the column that "
            "holds the text"
        )


def is_documents(table: pa.Table) -> bool:
    """Return True if datakit wrote these rows: their first columns are LEADING, and every id has 32 hex digits."""
    leading = pa.schema([table.schema.field(number) for number in range(min(len(LEADING), table.num_columns))])
    if not leading.equals(LEADING):
        return False
    try:
        ids_from_arrow(table.column("id"))
    except ValueError:
        return False
    return True
