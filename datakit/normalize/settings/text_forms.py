"""Parses the setting `text`: which columns of a record make its text, and how.

    text = "body"                                                       the value of a column
    text = "response.body.text"                                         the value at a path (paths.py)
    text = { columns = ["title", "pages.text"], separator = "\\n\\n" }    several values, one after another
    text = { template = "{title}\\n\\n{body}" }                           several values in a template
    text = { chat = "messages", message = "{role}: {content}" }         one value per message

`separator` is put between the values of `columns`, between the elements of a list and between messages. A value that is
null is never written as a word. `columns` leaves out values that are null or empty. A template leaves a null empty; the
record has no text if all values are null or, with `nulls = "missing"`, if any is.

In a template, `{name}` stands for the value at a path, and `{{` and `}}` stand for braces. Nothing in a template is
executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from datakit.errors import RecipeError, suggestion
from datakit.normalize.settings.paths import ColumnPath, parse_path

PATH, COLUMNS, TEMPLATE, CHAT = "path", "columns", "template", "chat"
SEPARATOR, MESSAGE = "\n\n", "{role}: {content}"
EMPTY, MISSING = "empty", "missing"
KEYS = {  # form -> the keys that its table may have, beside the one that names the form
    COLUMNS: ("separator",),
    TEMPLATE: ("separator", "nulls"),
    CHAT: ("message", "separator"),
}
NAME = "text"  # the name under which `where` sees a text that is not the value of one column
Pieces: TypeAlias = tuple[str | ColumnPath, ...]
_PIECE = re.compile(r"\{\{|\}\}|\{((?:\"(?:[^\"]|\"\")*\"|[^{}\"])*)\}|[{}]|[^{}]+")


@dataclass(frozen=True)
class TextForm:
    """The form in which the text of a record is made.

    pieces: the paths of the values, and the strings between them if the form is a template; for a chat, the path of the
    messages. message: the pieces of a message, with paths that begin in the message.
    """

    kind: str
    pieces: Pieces
    separator: str = SEPARATOR
    nulls: str = EMPTY
    message: Pieces = ()

    @property
    def paths(self) -> tuple[ColumnPath, ...]:
        """The paths of all values that the text is made of, beginning with columns, without repetition."""
        found = paths_in(self.pieces)
        if self.kind == CHAT:
            above = self.chat
            found = [ColumnPath(f"{above.whole}.{one.whole}", (*above.parts, *one.parts)) for one in self.fields]
        return tuple(dict.fromkeys(found))

    @property
    def chat(self) -> ColumnPath:
        """The path of the messages of a chat."""
        return paths_in(self.pieces)[0]

    @property
    def fields(self) -> list[ColumnPath]:
        """The paths of the values in a message."""
        return paths_in(self.message)

    @property
    def scalars(self) -> bool:
        """True if numbers, booleans and dates are written as text; False if only strings are texts."""
        return self.kind in (COLUMNS, TEMPLATE)


def paths_in(pieces: Pieces) -> list[ColumnPath]:
    """Return the paths among the pieces of a template."""
    return [one for one in pieces if isinstance(one, ColumnPath)]


def parse_text(text: str | Mapping[str, Any]) -> TextForm | None:
    """Parse the setting `text`. Returns None for the name of a column that cannot be a path. Raises RecipeError."""
    if isinstance(text, str):
        return _parse_string(text)
    kinds = [kind for kind in KEYS if kind in text]
    if len(kinds) != 1:
        raise RecipeError(f"text: a table must have exactly one of the keys {', '.join(KEYS)}")
    (kind,) = kinds
    for name in text:
        if name not in (kind, *KEYS[kind]):
            raise RecipeError(f"text: unknown key {name!r} beside {kind!r}; {suggestion(name, [kind, *KEYS[kind]])}")
    separator, nulls = _string(text, "separator", SEPARATOR), _string(text, "nulls", EMPTY)
    if nulls not in (EMPTY, MISSING):
        raise RecipeError(f"text.nulls {nulls!r} is unknown; {suggestion(nulls, (EMPTY, MISSING))}")
    if kind == COLUMNS:
        return TextForm(kind, tuple(_columns(text[kind])), separator)
    if kind == TEMPLATE:
        return TextForm(kind, parse_template(_string(text, kind), "text.template"), separator, nulls)
    message = parse_template(_string(text, "message", MESSAGE), "text.message")
    return TextForm(kind, (parse_path(_string(text, kind), "text.chat"),), separator, message=message)


def _parse_string(text: str) -> TextForm | None:
    if not text:
        raise RecipeError("`text` is empty; it must name the column that holds the text")
    if not any(letter in text for letter in '."'):
        return None
    try:
        return TextForm(PATH, (parse_path(text, "text"),))
    except RecipeError:
        return None  # not a path, so it can only be the name of a column


def _columns(names: Any) -> Iterator[ColumnPath]:
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise RecipeError("text.columns must be a list of at least one column or path")
    for name in names:
        yield parse_path(name, "text.columns")


def _string(table: Mapping[str, Any], name: str, default: str = "") -> str:
    value = table.get(name, default)
    if not isinstance(value, str):
        raise RecipeError(f"text.{name} must be a string")
    return value


def parse_template(template: str, place: str) -> Pieces:
    """Parse a template into strings and paths. Raises RecipeError, whose message begins with `place`."""
    pieces, plain = list[str | ColumnPath](), ""
    for match in _PIECE.finditer(template):
        found = match[0]
        if found in ("{", "}"):
            twice = found * 2
            raise RecipeError(f"{place}: the {found!r} at character {match.start() + 1} has no counterpart; write "
                              f"{twice!r} for a brace in the text")  # fmt: skip
        if match[1] is None:
            plain += found[0] if found in ("{{", "}}") else found
            continue
        pieces += [*([plain] if plain else []), parse_path(match[1], place)]
        plain = ""
    pieces += [plain] if plain else []
    if not paths_in(tuple(pieces)):
        raise RecipeError(f"{place}: {template!r} names no column; write, for example, '{{title}}\\n\\n{{body}}'")
    return tuple(pieces)
