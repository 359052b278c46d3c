"""Makes texts of records in plain Python, by the rules in docs/sources.md: the model for `datakit.normalize.texts`."""

from __future__ import annotations

from typing import Any

from datakit.normalize.settings.paths import ColumnPath
from datakit.normalize.settings.text_forms import Pieces, TextForm


def values_at(value: Any, parts: tuple[str, ...]) -> list[Any]:
    """The values at a path that are not null."""
    if value is None:
        return []
    if isinstance(value, list):
        if parts and parts[0].isdecimal():
            return values_at(value[int(parts[0])], parts[1:]) if int(parts[0]) < len(value) else []
        return [found for one in value for found in values_at(one, parts)]
    return values_at(value.get(parts[0]), parts[1:]) if parts else [value]


def text_of(record: dict[str, Any], form: TextForm) -> str | None:
    """The text of a record, or None if it has none."""

    def written(path: ColumnPath) -> str | None:
        values = values_at(record.get(path.whole), ()) or values_at(record, path.parts)
        return form.separator.join(map(_plain, values)) if values else None

    if form.kind == "chat":
        messages = values_at(record, form.chat.parts)
        return form.separator.join(_message(one, form.message, form) for one in messages) if messages else None
    found = [one if isinstance(one, str) else written(one) for one in form.pieces]
    values = [text for one, text in zip(form.pieces, found, strict=True) if not isinstance(one, str)]
    if form.kind == "path":
        return values[0]
    if form.kind == "columns":
        return form.separator.join(filter(None, values)) or None
    if all(text is None for text in values) or (form.nulls == "missing" and None in values):
        return None
    return "".join(text or "" for text in found)


def _message(message: dict[str, Any], pieces: Pieces, form: TextForm) -> str:
    return "".join(
        one if isinstance(one, str) else form.separator.join(map(_plain, values_at(message, one.parts)))
        for one in pieces
    )


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else str(value)
