"""Checks the rules of a recipe against the rest of the recipe: the sources and annotators that they name must exist,
and their SQL must be allowed. Names of columns are checked when the rules are applied, as only tables have them.
"""

from __future__ import annotations

from datakit.annotate.tables import TABLES
from datakit.dedup.survivors import score_columns
from datakit.errors import RecipeError, suggestion
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
        rules.check_conditions(config.rules, annotators_of(recipe))
    except RecipeError as error:
        found.append(f"{recipe.place}: {error}")
    return found


def annotators_of(recipe: Recipe) -> list[str]:
    """Return the names of the recipe's annotators."""
    table = (recipe.annotate or {}) if (recipe.annotate or {}).get("enabled", True) else {}
    named = [name for kind in (USER, MODEL_SERVER) for name in table.get(kind, {})]
    return [*(name for name in TABLES if name in table), *named]


def prefer_mistakes(recipe: Recipe) -> list[str]:
    """Return a message for each score in dedup.prefer that is a column of an annotator which the recipe lacks, although
    it has others. Without annotators, the name may be that of a column of the documents.
    """
    annotators, found = annotators_of(recipe), list[str]()
    prefer = (recipe.dedup or {}).get("prefer", ())
    for name in (column.partition(".")[0] for column in score_columns(prefer) if "." in column):
        if annotators and name in TABLES and name not in annotators:
            found.append(
                f"{recipe.place}, [dedup]: prefer reads {name}, but the recipe has no [annotate.{name}]; add it"
            )
    return found
