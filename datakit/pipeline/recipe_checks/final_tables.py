"""Checks the rules and buckets of [select] against the rest of the recipe: the sources, annotators and edits that they
name must exist, their SQL must be allowed, and the name of a bucket of a source must not be that of another source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from datakit.conditions.config import Rule
from datakit.conditions.expressions import Conditions
from datakit.errors import RecipeError, suggestion
from datakit.pipeline.recipe_checks.annotator_columns import unknown_column
from datakit.pipeline.recipe_checks.rule_tables import annotators_of
from datakit.recipe import Recipe
from datakit.select import stage as select
from datakit.select.final.equal_texts import EQUAL
from datakit.select.plan_edits import EDITS
from datakit.storage.selection.buckets import REST
from datakit.toml_config import convert


def final_mistakes(recipe: Recipe) -> list[str]:
    """Return a message for each mistake. The tables themselves are valid."""
    edits = recipe.select.get(EDITS, {})
    config = convert({key: value for key, value in recipe.select.items() if key != EDITS}, select.Config, recipe.place)
    found = list[str]()
    if EQUAL in recipe.select and not edits:
        found.append(f"{recipe.place}, [select]: {EQUAL} has no effect without [select.edits]; remove it")
    buckets = [bucket.as_rule() for bucket in config.buckets]
    for what, rules in (("rule", config.rules), ("bucket", buckets)):
        found += [f"{recipe.place}, [select], {what} {message}" for message in _mistakes(rules, recipe, sorted(edits))]
    return found + [f"{recipe.place}, [select], bucket {message}" for message in _ambiguous(buckets, recipe)]


def _mistakes(rules: Sequence[Rule], recipe: Recipe, edits: Sequence[str]) -> Iterator[str]:
    sources = [source.name for source in recipe.sources]
    for rule in rules:
        for source in rule.sources:
            if source not in sources:
                yield f"{rule.name!r}: no source {source!r}; {suggestion(source, sources)}"
        try:
            conditions = Conditions([rule], edits)
            yield from (f"{name!r}: {message}" for name, message in conditions.unknown_sources(sources))
            conditions.check(annotators_of(recipe))
            for name in conditions.annotators:
                unknown = [unknown_column(recipe, name, column) for column in conditions.wanted[name]]
                yield from (f"{rule.name!r}: {message}" for message in unknown if message)
        except RecipeError as error:
            message = str(error)
            named = message.startswith(f"rule {rule.name!r}")
            yield message.removeprefix("rule ") if named else f"{rule.name!r}: {message}"


def _ambiguous(buckets: Sequence[Rule], recipe: Recipe) -> Iterator[str]:
    """Yield a message for each bucket of a source whose name in mixtures, `source.bucket`, is that of a source."""
    sources = [source.name for source in recipe.sources]
    for source in sources:
        mine = [bucket.name for bucket in buckets if not bucket.sources or source in bucket.sources]
        for name in (*mine, REST) if mine else ():
            if f"{source}.{name}" in sources:
                yield f"{name!r}: mixtures would name it {source}.{name}, which is also a source; rename one of them"
