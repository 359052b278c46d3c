"""Checks, before anything else is done, that the tables of annotators have the columns that expressions of rules read.

Cost: one task, which reads the footers of one table per source and annotator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from datakit.conditions.expressions import Conditions
from datakit.conditions.records import table_field
from datakit.conditions.works import works_of
from datakit.engine.task import Phase, Step, Task, TaskContext, TaskResult
from datakit.storage.parquet import open_shard


def check_columns(step: Step, conditions: Conditions) -> Iterator[Phase]:
    """Yield a phase that checks the columns, if expressions read annotators. All tables of an annotator and a source
    have the same columns.
    """
    found = list[Mapping[str, str]]()
    for entry in step.inputs_of("normalize") if conditions.annotators else ():
        found += [dict(work.part.tables) for work in works_of(entry, step.inputs_of("annotate"), conditions)[:1]]
    if found:
        arguments = {"tables": found, "wanted": {name: conditions.wanted[name] for name in conditions.annotators}}
        yield Phase("columns", (Task("columns", f"{__name__}:check_tables", arguments),))


def check_tables(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Raise ColumnError if a table lacks a column."""
    for tables in arguments["tables"]:
        for name, url in tables.items():
            with open_shard(url) as shard:
                schema = shard.schema_arrow
            for column in arguments["wanted"][name]:
                table_field(column, schema, name)
    return TaskResult()
