"""Checks the rules of a recipe against the rest of the recipe: the sources and annotators that they name must exist,
and their SQL must be allowed. Names of columns are checked when the rules are applied, as only tables have them.
"""

from __future__ import annotations

from datakit.annotate.tables import TABLES
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
    table = (recipe.annotate or {}) if (recipe.annotate or {}).get("enabled", True) else {}
    try:
        named = [name for kind in (USER, MODEL_SERVER) for name in table.get(kind, {})]
        rules.check_conditions(config.rules, [*(name for name in TABLES if name in table), *named])
    except RecipeError as error:
        found.append(f"{recipe.place}: {error}")
    return found
