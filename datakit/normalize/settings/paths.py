"""Parses the paths of values in nested columns, such as `response.body.text`.

The parts of a path are separated by dots. A part that contains a dot or a quote is put in double quotes, in which a
quote is doubled: `"a.b".c`. What a path selects in a record follows from the record alone:

- In an object, a part selects the field of this name.
- In a list, a part that is a whole number selects the element at this position, counted from 0. Any other part selects
  its value in each element.
- At the end of a path, the elements of lists are selected one by one, at any depth.
- If a column has the whole path as its name and holds a value in the record, this value is selected instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from datakit.errors import RecipeError

_PART = re.compile(r'"((?:[^"]|"")+)"|([^."]+)')


@dataclass(frozen=True)
class ColumnPath:
    """A path to values in a column. whole: the path as written. parts: the name of the column, then those of fields."""

    whole: str
    parts: tuple[str, ...]

    @property
    def column(self) -> str:
        """The name of the column that the path leads into."""
        return self.parts[0]


def parse_path(text: str, place: str) -> ColumnPath:
    """Parse a path. Raises RecipeError, whose message begins with `place`, the name of the setting."""
    parts, position = list[str](), 0
    while (match := _PART.match(text, position)) is not None:
        parts.append(match[1].replace('""', '"') if match[1] is not None else match[2])
        position = match.end()
        if position == len(text):
            return ColumnPath(text, tuple(parts))
        if text[position] != ".":
            break
        position += 1
    raise RecipeError(
        f"{place}: {text!r} is not a path; write names separated by dots, and put a name that contains a dot or a "
        'quote in double quotes, such as "a.b".c'
    )
