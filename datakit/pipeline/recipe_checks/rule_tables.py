"""Checks the rules of a recipe against the rest of the recipe: the sources, the annotators and, as far as settings
declare them, the annotators' columns that they name must exist, and their SQL must be allowed.
"""

from __future__ import annotations

from difflib import get_close_matches

from datakit.annotate.tables import TABLES, chosen_tables
from datakit.conditions.expressions import Conditions
from datakit.dedup.survivors import score_columns
from datakit.errors import RecipeError, suggestion
from datakit.pipeline.recipe_checks.annotator_columns import unknown_column
from datakit.recipe import MODEL_SERVER, USER, Recipe
from datakit.rules import stage as rules
from datakit.toml_config import convert


def rule_mistakes(recipe: Recipe) -> list[str]:
    """Return a message for each mistake. The tables themselves are valid."""
    if not recipe.rules:
        return []
    config = convert({rules.NAME: list(recipe.rules)}, rules.Config, recipe.place)
    sources = [source.name for source in recipe.sources]
    found = [
        f"{recipe.place}, rule {rule.name!r}: no source {source!r}; {suggestion(source, sources)}"
        for rule in config.rules
        for source in rule.sources
        if source not in sources
    ]
    try:
        conditions = Conditions(config.rules)
        found += [f"{recipe.place}, rule {name!r}: {message}" for name, message in conditions.unknown_sources(sources)]
        conditions.check(annotators_of(recipe))
        for name in conditions.annotators:
            for column in conditions.wanted[name]:
                if message := unknown_column(recipe, name, column):
                    found.append(f"{recipe.place}: {conditions.reads(name, column)}, but {message}")
    except RecipeError as error:
        found.append(f"{recipe.place}: {error}")
    return found


def annotators_of(recipe: Recipe) -> list[str]:
    """Return the names of the recipe's annotators."""
    table = (recipe.annotate or {}) if (recipe.annotate or {}).get("enabled", True) else {}
    named = [name for kind in (USER, MODEL_SERVER) for name in table.get(kind, {})]
    return [*(one.name for one in chosen_tables(table)), *named]


def prefer_mistakes(recipe: Recipe) -> list[str]:
    """Return a message for each score in dedup.prefer that names an annotator which the recipe lacks, although it has
    others, or a column that the annotator does not write. A name that resembles no annotator's may be that of a column
    of the documents.
    """
    annotators, found = annotators_of(recipe), list[str]()
    prefer = (recipe.dedup or {}).get("prefer", ())
    for name, _, column in (entry.partition(".") for entry in score_columns(prefer) if "." in entry):
        place = f"{recipe.place}, [dedup]: prefer reads {name}.{column}, but"
        if name in annotators and (message := unknown_column(recipe, name, column)):
            found.append(f"{place} {message}")
        elif annotators and name in TABLES and name not in annotators:
            named = [one.name for one in chosen_tables(recipe.annotate or {}) if one.annotator == name]
            advice = f"write {' or '.join(f'{one}.{column}' for one in named)}" if named else "add it"
            found.append(f"{place} the recipe has no [annotate.{name}]; {advice}")
        elif name not in annotators and get_close_matches(name, annotators):
            found.append(f"{place} the recipe has no annotator {name!r}; {suggestion(name, annotators)}")
    return found
