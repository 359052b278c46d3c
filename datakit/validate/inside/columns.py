"""Compares the columns of a step's Parquet files with one another and with the manifest's schema, and the row counts in
the files' footers with the manifest.

Consolidate keeps the columns of each source, so its manifest's schema names only the columns that all sources have.

Cost: one footer per file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from datakit.normalize.origins import FILES, SCHEMA, duplicates_path, origins_path
from datakit.storage.manifest import Column, Partition
from datakit.storage.parquet import columns_of, open_shard
from datakit.validate.finding import Result
from datakit.validate.subject import Subject, in_parallel

CONSOLIDATE, NORMALIZE = "consolidate", "normalize"
DUPLICATE_COLUMNS = ["id", "source_id", "kept_source_id"]


def check(step: Subject, result: Result) -> None:
    """Compare the schemas of all partitions and, for normalize, those of the lists of origins and of duplicates."""
    parts = [part for part in step.manifest.partitions if step.sound(step.place(part))]
    if len(parts) < len(step.manifest.partitions):
        result.skip("damaged partitions are not opened")
    first: dict[str, pa.Schema] = {}
    for part, schema in zip(parts, in_parallel(partial(_footer, step, result), parts), strict=True):
        if schema is None:
            continue
        result.count("schema")
        for difference in _differences(step, part, schema, first.setdefault(part.source, schema)):
            result.find(step.place(part), difference)
    if step.manifest.stage == NORMALIZE:
        _check_lists(step, result)


def _footer(step: Subject, result: Result, part: Partition) -> pa.Schema | None:
    with result.reading(step.place(part)), open_shard(step.place(part)) as shard:
        if shard.metadata.num_rows != part.rows:
            result.find(step.place(part), f"has {shard.metadata.num_rows} rows; the manifest says {part.rows}")
        return shard.schema_arrow
    return None


def _differences(step: Subject, part: Partition, schema: pa.Schema, first: pa.Schema) -> Iterator[str]:
    ours, stated = ([_as_written(column) for column in one] for one in (columns_of(schema), step.manifest.schema))
    missing = [column for column in stated if column not in ours]
    if missing or (step.manifest.stage != CONSOLIDATE and ours != stated):
        yield f"has the columns {_text(ours)}; the manifest says {_text(stated)}"
    elif not schema.equals(first):
        yield f"has the columns {_text(ours)}; the first file of source {part.source!r} has {_text(columns_of(first))}"


def _as_written(column: Column) -> Column:
    """Return the column with the elements of lists named "item"; Parquet renames them to "element"."""
    return Column(column.name, column.type.replace("list<element: ", "list<item: "))


def _text(columns: list[Column]) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in columns)


def _check_lists(step: Subject, result: Result) -> None:
    """Compare the columns and row counts of the lists of origins and of duplicates."""
    for file in step.manifest.files:
        kinds = {origins_path(): FILES.names, origins_path(""): SCHEMA.names, duplicates_path(""): DUPLICATE_COLUMNS}
        names = kinds.get(file.path, next((kinds[key] for key in kinds if file.path.startswith(key)), None))
        if names is None or not step.sound(url := step.url(file.path)):
            continue
        with result.reading(url), open_shard(url) as shard:
            result.count("schema")
            if shard.schema_arrow.names != names:
                result.find(url, f"has the columns {', '.join(shard.schema_arrow.names)} instead of {', '.join(names)}")
            if shard.metadata.num_rows != file.rows:
                result.find(url, f"has {shard.metadata.num_rows} rows; the manifest says {file.rows}")
