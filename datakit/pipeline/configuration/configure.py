"""Decodes a recipe into checked settings for each stage. One error reports all mistakes in its tables."""

from __future__ import annotations

from datakit.engine.disk_limits import DiskLimits
from datakit.errors import RecipeError
from datakit.passages import stage as passages
from datakit.pipeline.configuration.settings import Configuration
from datakit.pipeline.configuration.stage_settings import contract_settings, settings_of
from datakit.pipeline.configuration.table_mistakes import mistakes_of, table_mistakes
from datakit.pipeline.configuration.tables import LIMITS, limits_table, tables_of
from datakit.pipeline.recipe_checks.edit_tables import edit_mistakes
from datakit.pipeline.recipe_checks.final_tables import final_mistakes
from datakit.pipeline.recipe_checks.passage_tables import passage_mistakes
from datakit.pipeline.recipe_checks.rule_tables import prefer_mistakes, rule_mistakes
from datakit.recipe import Recipe
from datakit.select import stage as select
from datakit.tokenize import contract_stage
from datakit.tokenize import stage as tokenize
from datakit.toml_config import convert, refuse

CHECKS = (  # made once all tables are valid
    rule_mistakes, prefer_mistakes, passage_mistakes, edit_mistakes, final_mistakes,
)  # fmt: skip


def configure(recipe: Recipe) -> Configuration:
    """Return the settings of all stages of a recipe, decoded from its tables. Hashes the recipe's tokenizer file.
    Raises RecipeError or TokenizerError.
    """
    try:
        tables = list(tables_of(recipe))
    except RecipeError as error:
        refuse([str(error), *table_mistakes(vars(recipe), recipe.place)])
        raise
    found: dict[str, str] = {}  # a mistake in [normalize] is found for every source, but reported once
    for table in (*tables, limits_table(recipe.limits, recipe.place)):
        for message in mistakes_of(table):
            found.setdefault(message.replace(f" of source {table.source!r}", ""), message)
    refuse(found.values() or [message for check in CHECKS for message in check(recipe)])
    configs = [convert(table.values, table.kind, table.place) for table in tables]
    configuration: Configuration = {}
    for table, config in zip(tables, configs, strict=True):
        configuration.setdefault(table.stage, {})[table.source] = settings_of(table, config, recipe.folder)
    if tokenize.NAME in configuration:
        configuration[contract_stage.NAME] = {None: contract_settings(configuration[tokenize.NAME][None])}
    if passages.NAME in configuration:  # it searches the documents that select will keep
        drop = configuration[select.NAME][None].content[passages.DROP]
        configuration[passages.NAME][None].content[passages.DROP] = drop
    return configuration


def disk_limits(recipe: Recipe) -> DiskLimits:
    """Return the limits on disk use, which apply to all stages."""
    return convert(recipe.limits, DiskLimits, f"{recipe.place}, [{LIMITS}]")
