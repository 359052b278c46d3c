"""Implements `datakit recipe keys` and `datakit recipe schema`, which describe what a recipe may contain."""

from __future__ import annotations

import textwrap

from datakit.cli.console import note, say, say_json
from datakit.cli.parameters import Flag

WIDTH = 79


def keys(name: str | None = None, /, *, json: Flag = False) -> int:
    """List every key of a recipe, with its type, its default, its meaning and an example.

    Examples:
      datakit recipe keys
      datakit recipe keys dedup
      datakit recipe keys normalize.where

    Parameters
    ----------
    name
        Show only this table (sources, normalize, annotate, annotate.language, rules, dedup, passages, select,
        consolidate, tokenize, tokenize.train, limits, ...) or this key.
    json
        Print one JSON object.
    """
    from datakit.errors import UsageError, suggestion
    from datakit.recipe_keys import MEANINGS, heading, recipe_keys

    known = {(key.table, f"{key.table}.{key.name}".lstrip(".")): key for key in recipe_keys()}
    shown = [key for names, key in known.items() if name is None or name in names]
    if not shown:
        raise UsageError(f"a recipe has no table or key {name!r}; {suggestion(name or '', {*sum(known, ())} - {''})}")
    if json:
        say_json({"keys": shown})
        return 0
    for here in dict.fromkeys(key.table for key in shown):
        say(f"{heading(here)}\n{textwrap.fill(MEANINGS[here], WIDTH)}\n")
        for key in (key for key in shown if key.table == here):
            default = (
                "required" if key.required else f"default {key.default}" if key.default is not None else "optional"
            )
            say(_wrapped(f"{key.name}  ({key.type}; {default})", "  ", "      "))
            say(_wrapped(key.meaning, "      ", "      "))
            say(_wrapped(f"{key.name} = {key.example}", "      ", "        ") + "\n")
    note("next: datakit init TEXTS, then datakit plan recipe.toml")
    return 0


def _wrapped(text: str, first: str, others: str) -> str:
    """Wrap a text at spaces. first, others: the indentation of the first line, and of all others."""
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=others, break_long_words=False,
                         break_on_hyphens=False)  # fmt: skip


def schema() -> int:
    """Print the JSON schema of recipes, with which an editor completes keys and marks mistakes.

    Save the schema beside a recipe, and begin the recipe with the line `#:schema recipe.schema.json`.

    Examples:
      datakit recipe schema > recipe.schema.json
    """
    from datakit.recipe_keys import json_schema

    say_json(json_schema())
    return 0
