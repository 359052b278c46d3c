"""Finds the reason why no text can be made of a JSON record, whose values have types of their own.

The types of a column in Arrow follow from all records of a chunk, and mixed values become strings. A record's fate must
not depend on its neighbors, so the values of each record are checked before the chunk becomes columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from datakit.normalize.settings.text_forms import CHAT, TextForm


def wrong_value(record: dict[str, Any], form: TextForm, name_of: Callable[[Any], str]) -> str | None:
    """Return the reason why no text can be made of a record, or None if one can be made, if only a missing one.

    name_of: returns the name of a JSON value's type, such as "number".
    """
    if form.kind == CHAT and (reason := _not_messages(record, form, name_of)):
        return reason
    for path in form.paths:
        whole = record.get(path.whole) if form.kind != CHAT else None
        value, parts = (record.get(path.column), path.parts[1:]) if whole is None else (whole, ())
        found = _wrong(value, parts, form.scalars)
        if found is not None:
            wanted = "an object" if found[1] else "a string or a number" if form.scalars else "a string"
            return f"{path.whole!r} holds a JSON {name_of(found[0])}, not {wanted}"
    return None


def _not_messages(record: dict[str, Any], form: TextForm, name_of: Callable[[Any], str]) -> str | None:
    found = _wrong(record.get(form.chat.column), form.chat.parts[1:], False, objects=True)
    return None if found is None else f"{form.chat.whole!r} holds a JSON {name_of(found[0])}, not messages"


def _wrong(value: Any, parts: tuple[str, ...], scalars: bool, objects: bool = False) -> tuple[Any, bool] | None:
    """Return the first value that cannot be part of a text, and True if an object was expected in its place."""
    if value is None:
        return None
    if isinstance(value, list):
        if parts and parts[0].isdecimal():
            place = int(parts[0])
            return _wrong(value[place] if place < len(value) else None, parts[1:], scalars, objects)
        return next((bad for one in value if (bad := _wrong(one, parts, scalars, objects)) is not None), None)
    if parts:
        if not isinstance(value, dict):
            return value, True
        return _wrong(value.get(parts[0]), parts[1:], scalars, objects)
    if objects:
        return None if isinstance(value, dict) else (value, True)
    if isinstance(value, dict) or not (scalars or type(value) is str):
        return value, False
    return None
