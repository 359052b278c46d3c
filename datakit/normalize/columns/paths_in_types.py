"""Finds what a path leads to, given the types of columns, and whether a text can be made of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyarrow import types

from datakit.normalize.columns.number_types import is_number
from datakit.normalize.settings.paths import ColumnPath
from datakit.normalize.settings.text_forms import CHAT, TextForm

_TEXTS = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
_SCALARS = (is_number, types.is_boolean, types.is_temporal, types.is_decimal)


class NoFieldsError(ValueError):
    """A path leads into a value that has no fields. kind: the value's type."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(str(kind))
        self.kind = kind


def is_any_list(kind: pa.DataType) -> bool:
    """Return True for a list type of any kind."""
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def type_at(kind: pa.DataType, parts: tuple[str, ...]) -> pa.DataType | None:
    """Return the type of the values that the rest of a path selects in values of type `kind`, or None if the values
    have no such field or are all null. Raises NoFieldsError.
    """
    if types.is_null(kind):
        return None if parts else kind
    if is_any_list(kind):
        return type_at(kind.value_type, parts[1:] if parts and parts[0].isdecimal() else parts)
    if not parts:
        return kind
    if types.is_struct(kind):
        place = kind.get_field_index(parts[0])
        return type_at(kind.field(place).type, parts[1:]) if place >= 0 else None
    if types.is_map(kind) and (types.is_string(kind.key_type) or types.is_large_string(kind.key_type)):
        return type_at(kind.item_type, parts[1:])
    raise NoFieldsError(kind)


def is_in(schema: pa.Schema, path: ColumnPath) -> bool:
    """Return True if records with these columns may have a value at the path."""
    if path.whole in schema.names:
        return True
    try:
        return path.column in schema.names and type_at(schema.field(path.column).type, path.parts[1:]) is not None
    except NoFieldsError:
        return True  # the column exists; that it has another type is reported elsewhere


def names_in(schema: pa.Schema) -> Iterator[str]:
    """Yield the names of columns and, after each, the paths of the fields in it."""
    for field in schema:
        yield field.name
        yield from _names(field.type, field.name)


def _names(kind: pa.DataType, above: str) -> Iterator[str]:
    if is_any_list(kind):
        yield from _names(kind.value_type, above)
    elif types.is_struct(kind):
        for field in kind.fields:
            yield f"{above}.{field.name}"
            yield from _names(field.type, f"{above}.{field.name}")


def mistake(schema: pa.Schema, form: TextForm) -> str | None:
    """Return a clause that says why no text can be made of columns with these types, or None if one can be made."""
    if form.kind == CHAT:
        return _chat_mistake(schema, form.chat) or _mistake(schema, form, form.paths)
    return _mistake(schema, form, [*form.paths, *(ColumnPath(one.whole, (one.whole,)) for one in form.paths)])


def _mistake(schema: pa.Schema, form: TextForm, paths: Iterable[ColumnPath]) -> str | None:
    for path in paths:
        if path.column not in schema.names:
            continue
        try:
            kind = type_at(schema.field(path.column).type, path.parts[1:])
        except NoFieldsError as error:
            return f"{path.whole!r} leads into a value of type {error.kind}, which has no fields"
        if kind is not None and not _usable(kind, form):
            return f"{path.whole!r} is {kind}, not {'text or a number' if form.scalars else 'text'}"
    return None


def _usable(kind: pa.DataType, form: TextForm) -> bool:
    if types.is_null(kind) or any(is_text(kind) for is_text in _TEXTS):
        return True
    return form.scalars and any(is_scalar(kind) for is_scalar in _SCALARS)


def _chat_mistake(schema: pa.Schema, chat: ColumnPath) -> str | None:
    if chat.column not in schema.names:
        return None
    try:
        kind = type_at(schema.field(chat.column).type, chat.parts[1:])
    except NoFieldsError as error:
        return f"{chat.whole!r} leads into a value of type {error.kind}, which has no fields"
    if kind is None or types.is_struct(kind) or types.is_null(kind):
        return None
    return f"{chat.whole!r} holds {kind}, not messages"
