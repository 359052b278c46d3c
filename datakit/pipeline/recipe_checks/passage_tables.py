"""Checks the searches for passages of a recipe: their number, and their names, which become names of columns."""

from __future__ import annotations

import re

from datakit.passages.config import MOST_SEARCHES
from datakit.passages.stage import NAME
from datakit.recipe import Recipe

SEARCH_NAME = re.compile(r"[a-z][a-z0-9_]*")
RESERVED = ("id", "enabled")


def passage_mistakes(recipe: Recipe) -> list[str]:
    """Return a message for each mistake. The tables themselves are valid."""
    if recipe.passages is None or not recipe.passages.get("enabled", True):
        return []
    place, names = f"{recipe.place}, [{NAME}", sorted(set(recipe.passages) - {"enabled"})
    found = [
        f"{place}.{name}]: the name of a search must begin with a lowercase letter, may otherwise hold lowercase "
        f"letters, digits and `_`, and cannot be {RESERVED[0]!r}"
        for name in names
        if not SEARCH_NAME.fullmatch(name) or name in RESERVED
    ]
    if not names:
        found.append(f'{place}]: there is no search; add a subtable such as [{NAME}.lines], with unit = "line"')
    if len(names) > MOST_SEARCHES:
        found.append(f"{place}]: there are {len(names)} searches; the limit is {MOST_SEARCHES}")
    return found
