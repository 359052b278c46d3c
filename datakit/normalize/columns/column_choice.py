"""Decides which columns of a source are read and which are carried to the output, and which columns its settings name.

A column is read if it will be stored or if the text, the id or `where` needs it. With a transform, all columns are read
except those in `drop`, because the transform may use any of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from datakit.errors import ColumnError, suggestion
from datakit.normalize.config import Config
from datakit.normalize.settings.column_settings import RESERVED, base_name
from datakit.normalize.settings.paths import ColumnPath
from datakit.sql.database import open_database
from datakit.sql.expression import column_paths

MOST_NAMES = 200  # the names of columns and fields that are kept for a message
TEXT = "text"
RECORDS = "records"  # the name that a `where` may put before a column's


class ColumnChoice:
    """The columns of a source that are read, carried and stored, by name.

    unread: the first names of columns that were found not to be read, for messages.
    """

    def __init__(self, config: Config) -> None:
        self._drop, self._keep = frozenset(config.drop), frozenset(config.keep)
        self._transform = config.transform is not None
        self._own = frozenset((*RESERVED, config.id)) - {TEXT} if config.keep else frozenset[str]()
        self.unread: dict[str, None] = {}
        self._needed = frozenset(_needed(config)) if self._drop or self._keep else frozenset[str]()

    def reads(self, name: str) -> bool:
        """Return True if readers pass the column on."""
        name = base_name(name)
        read = name not in self._drop if self._transform else name in self._needed or self.carries(name)
        if not read and len(self.unread) < MOST_NAMES:
            self.unread[name] = None
        return read

    def carries(self, name: str) -> bool:
        """Return True if the column may be stored. Which of the columns with datakit's own names are stored depends on
        whether datakit wrote the whole source.
        """
        name = base_name(name)
        return self.stores(name) or (name in self._own and name not in self._drop)

    def stores(self, name: str) -> bool:
        """Return True if the column is stored under a name of its own."""
        name = base_name(name)
        return name not in self._drop and (not self._keep or name in self._keep)

    def read_columns(self, table: pa.Table) -> pa.Table:
        """Return the table with only the columns that are read."""
        names = table.column_names
        kept = [name for name in names if self.reads(name)]
        return table if len(kept) == len(names) else table.select(kept)


def _needed(config: Config) -> Iterator[str]:
    for path in config.text_paths:
        yield from (path.whole, path.column)
    yield from (path.column for path in where_paths(config.where))


@cache
def where_paths(where: str | None) -> tuple[ColumnPath, ...]:
    """Return the paths of the columns and fields that a `where` reads. Raises RecipeError. Cost: a few ms, once."""
    if where is None:
        return ()
    found = column_paths(open_database(), where)
    paths = [path[1:] if path[0] == RECORDS and len(path) > 1 else path for path in found]
    return tuple(ColumnPath(".".join(path), tuple(path)) for path in paths)


@dataclass(frozen=True)
class Wanted:
    """A path that a setting names, and that at least one record of the source must have."""

    setting: str
    path: ColumnPath


def wanted_paths(config: Config) -> list[Wanted]:
    """Return the paths that the settings name, except the text column and the id column, which are checked on their
    own.
    """
    found = [Wanted("text", path) for path in config.text_paths] if config.text_form is not None else []
    found += [Wanted("where", path) for path in where_paths(config.where) if path.column != config.text_name]
    for setting in ("keep", "rename", "conflicts"):
        names = [name for name in getattr(config, setting) if name not in (config.text_column, config.id)]
        found += [Wanted(setting, ColumnPath(name, (name,))) for name in names]
    return found


def check_wanted(source: str, config: Config, absent: Collection[int], names: Iterable[str]) -> None:
    """Raise ColumnError if a setting names a column or a field that no record has.

    source: the source's name, for the message. absent: the numbers, in the list of `wanted_paths`, of the paths that no
    record has. names: the columns and fields that records have.
    """
    known = [*dict.fromkeys(names)][:MOST_NAMES]
    for number, wanted in enumerate(wanted_paths(config) if absent else ()):
        if number in absent:
            what = "column" if len(wanted.path.parts) == 1 else "field"
            near = suggestion(wanted.path.whole, known + [config.text_name] * (wanted.setting == "where"))
            read = "no record" if config.limit is None else "no record before the limit"
            raise ColumnError(f"{source}: {wanted.setting}: {read} has the {what} {wanted.path.whole!r}; {near}")
