"""Tables of a TOML file as dataclasses, strictly: a key that nobody knows is an error, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

import msgspec

from datakit.errors import LoaderError, suggestion

T = TypeVar("T")


def decoded(table: Any, kind: type[T], place: str) -> T:
    """`table` as the dataclass `kind`. Raises LoaderError that names the place, the key and what it should be."""
    if not isinstance(table, Mapping):
        raise LoaderError(f"{place} must be a table")
    entries = fields(kind)  # pyright: ignore[reportArgumentType] - every kind here is a dataclass
    for key in table:
        if key not in (names := [entry.name for entry in entries]):
            raise LoaderError(f"{place}: unknown key {key!r}; {suggestion(key, names)}")
    for entry in entries:
        if entry.default is MISSING and entry.default_factory is MISSING and entry.name not in table:
            raise LoaderError(f"{place}: {entry.name!r} is missing")
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at ")
        key = where.strip("`").removeprefix("$").removeprefix(".")
        raise LoaderError(f"{place}: {key + ': ' if key else ''}{reason}") from error
