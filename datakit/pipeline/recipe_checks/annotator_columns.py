"""Knows, before a run, which columns an annotator will write, as far as its settings say so."""

from __future__ import annotations

import re
from collections.abc import Sequence

from datakit.annotate.heuristics.config import HeuristicsConfig
from datakit.annotate.heuristics.stop_word_lists import stop_word_lists
from datakit.annotate.model_server.config import ModelServerConfig
from datakit.annotate.tables import TABLES, chosen_tables
from datakit.annotate.user.config import UserConfig, separated
from datakit.conditions.records import KINDS
from datakit.errors import suggestion
from datakit.recipe import MODEL_SERVER, USER, Recipe
from datakit.toml_config import convert

HEURISTICS = "heuristics"
STOP_WORDS = re.compile(r"stop_word(?:s|_ratio)_(.+)")  # the columns of a list of stop words
COLUMN = re.compile(r"(?:^|, )(\w+): ")


def columns_of(recipe: Recipe, name: str) -> Sequence[str]:
    """Return the columns that an annotator of the recipe can write; none if they depend on a model, on files or on
    several settings. Raises RecipeError for a function that cannot be imported.
    """
    tables, place = recipe.annotate or {}, f"{recipe.place}, [annotate.{{}}.{name}]"
    if name in tables.get(MODEL_SERVER, {}):
        config = convert(tables[MODEL_SERVER][name], ModelServerConfig, place.format(MODEL_SERVER))
        return config.answer_format().schema.names
    if name in tables.get(USER, {}):
        return _names(_schema_of(recipe, name))
    if name == HEURISTICS:
        from datakit.annotate.heuristics.columns import columns  # loads Arrow

        heuristics = convert(tables[name], HeuristicsConfig, f"{recipe.place}, [annotate.{name}]")
        return [column.name for column in columns(heuristics.stop_words)]
    return next((TABLES[one.annotator].columns for one in chosen_tables(tables) if one.name == name), ())


def user_spans(recipe: Recipe, name: str) -> list[str]:
    """Return the columns of spans that a user's annotator of the recipe declares. Raises what `columns_of` raises."""
    from datakit.text.spans import SPANS  # loads Arrow

    schema = _schema_of(recipe, name)
    return [one for one in _names(schema) if re.search(rf"(?:^|, ){one}: {re.escape(str(SPANS))}(?:, |$)", schema)]


def _schema_of(recipe: Recipe, name: str) -> str:
    """Return the columns that a user's annotator declares, as text."""
    place = f"{recipe.place}, [annotate.{USER}.{name}]"
    user = convert((recipe.annotate or {})[USER][name], UserConfig, place)
    return separated(user, name, place, recipe.folder)[0]["schema"]


def _names(schema: str) -> list[str]:
    """Return the names of the columns of a schema that is given as text.

    >>> _names("score: double, spans: list<element: struct<start: uint64, kind: string> not null>, top: list<int8>")
    ['score', 'spans', 'top']
    """
    while (flat := re.sub(r"<[^<>]*>", "", schema)) != schema:
        schema = flat
    return COLUMN.findall(schema)


def unknown_column(recipe: Recipe, name: str, column: str) -> str:
    """Return a message if an annotator of the recipe certainly writes no such column; otherwise ""."""
    known = columns_of(recipe, name)
    if not known or column in known or (column.endswith(KINDS) and column.removesuffix(KINDS) in known):
        return ""
    if name == HEURISTICS and (lists := listed_stop_words([column])):
        return f'the annotator {name!r} has no column {column!r}; add "{lists[0]}" to its `stop_words`'
    return f"the annotator {name!r} has no column {column!r}; {suggestion(column, known)}"


def listed_stop_words(columns: Sequence[str]) -> list[str]:
    """Return the lists of stop words to which these columns of the annotator `heuristics` belong."""
    found = [one[1] for column in columns if (one := STOP_WORDS.fullmatch(column))]
    return [name for name in dict.fromkeys(found) if name in stop_word_lists()]
