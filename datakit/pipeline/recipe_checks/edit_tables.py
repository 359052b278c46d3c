"""Checks the edits of a recipe against the rest of the recipe: the annotators, searches, kinds and sources that they
name must exist, and the texts that they edit must be those that are encoded. Without these checks, a misspelled name
would leave texts as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from datakit.annotate.tables import TABLES
from datakit.errors import RecipeError, suggestion
from datakit.passages.config import SearchConfig
from datakit.pipeline.recipe_checks.annotator_columns import user_spans
from datakit.recipe import USER, Recipe
from datakit.select.edit_config import PASSAGES, EditConfig
from datakit.select.plan_edits import EDITS
from datakit.storage.fingerprint import config_of
from datakit.toml_config import convert

NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


def edit_mistakes(recipe: Recipe) -> list[str]:
    """Return a message for each mistake. The tables themselves are valid."""
    annotators = (recipe.annotate or {}) if (recipe.annotate or {}).get("enabled", True) else {}
    found = list[str]()
    for name, values in sorted(recipe.select.get(EDITS, {}).items()):
        place = f"{recipe.place}, [select.{EDITS}.{name}]"
        if not NAME.fullmatch(name):
            found.append(f"{place}: the name of an edit may hold lowercase letters, digits, `-` and `_`")
        edit = convert(values, EditConfig, place)
        if edit.table == PASSAGES:
            spans = _found_spans(edit, recipe)
        elif edit.table in annotators.get(USER, {}):
            spans = _user_spans(edit, recipe)
        else:
            spans = _spans(edit, annotators, recipe)
        mistakes = (*spans, *_sources(edit, recipe), *_formats(edit, recipe))
        found += [f"{place}: {message}" for message in mistakes]
    return found


def _spans(edit: EditConfig, annotators: Mapping[str, Any], recipe: Recipe) -> Iterator[str]:
    known = [f"{name}.{column}" for name in TABLES if name in annotators for column in TABLES[name].spans]
    if edit.spans in known:
        settings = config_of(annotators[edit.table], TABLES[edit.table].kind)
        yield from _unknown("kinds", edit.kinds, getattr(settings, "kinds", None), f"[annotate.{edit.table}]")
    elif edit.table in TABLES and edit.table not in annotators and edit.column in TABLES[edit.table].spans:
        yield f"spans is {edit.spans!r}, but the recipe has no table [annotate.{edit.table}]; add it"
    else:
        known += [f"{name}.{column}" for name in annotators.get(USER, {}) for column in user_spans(recipe, name)]
        every = [f"{name}.{column}" for name, table in TABLES.items() for column in table.spans]
        yield f"unknown spans {edit.spans!r}; {suggestion(edit.spans, known or every)}"


def _user_spans(edit: EditConfig, recipe: Recipe) -> Iterator[str]:
    """Yield a message if a function of the user does not declare that it writes these spans."""
    try:
        known = user_spans(recipe, edit.table)
    except RecipeError as error:
        yield str(error)
        return
    if edit.column not in known:
        advice = suggestion(edit.column, known) if known else "declare it in `writes` with the type datakit.SPANS"
        yield f"spans is {edit.spans!r}, but the annotator {edit.table!r} has no such column of spans; {advice}"


def _found_spans(edit: EditConfig, recipe: Recipe) -> Iterator[str]:
    """Yield a message if the recipe has no such search for passages."""
    tables = recipe.passages or {}
    searches = {name: table for name, table in tables.items() if name != "enabled"}
    if edit.column in searches and tables.get("enabled", True):
        unit = convert(searches[edit.column], SearchConfig, f"[{edit.spans}]").unit
        yield from _unknown("kinds", edit.kinds, (unit,), f"[{edit.spans}]")
    elif searches and tables.get("enabled", True):
        known = [f"{PASSAGES}.{name}" for name in searches]
        yield f"unknown spans {edit.spans!r}; {suggestion(edit.spans, known)}"
    else:
        yield f"spans is {edit.spans!r}, but the recipe has no table [{edit.spans}]; add it"


def _sources(edit: EditConfig, recipe: Recipe) -> Iterator[str]:
    yield from _unknown("sources", edit.sources, [source.name for source in recipe.sources], "the recipe")


def _unknown(setting: str, names: tuple[str, ...] | None, known: Any, place: str) -> Iterator[str]:
    for name in names or ():
        if known is not None and name not in known:
            yield f"{setting}: {place} has no {name!r}; {suggestion(name, known)}"


def _formats(edit: EditConfig, recipe: Recipe) -> Iterator[str]:
    """Yield a message for each source whose documents are encoded from another column than the text."""
    formats = (recipe.tokenize or {}).get("formats", {})
    for source in recipe.sources:
        kind = formats.get(source.name, "text")
        if kind != "text" and edit.applies_to(source.name):
            yield (
                f"the documents of source {source.name!r} are encoded from {kind}, not from their texts, so edits do "
                "not reach the token cache; list the other sources in `sources`"
            )
