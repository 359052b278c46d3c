"""Reads the scores of documents from the tables of annotators, for entries of `prefer` such as `score:language.score`.

The tables of an annotator are sorted by id and may lack documents, which then have no score. They are streamed beside
the partition that they describe, so memory does not grow with it. Cost: reading the ids and the column of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from datakit.dedup.survivors import NUMBERS, score_columns, score_values
from datakit.engine.task import Phase, StepInput, Task, TaskContext, TaskResult
from datakit.errors import ColumnError, CorruptError, suggestion
from datakit.storage import urls
from datakit.storage.ids import ids_from_arrow
from datakit.storage.manifest import Partition, table_path
from datakit.storage.parquet import iterate_shard, open_shard

PAIR = np.dtype([("high", np.uint64), ("low", np.uint64)])


def annotated_columns(prefer: Sequence[str], annotators: Sequence[StepInput]) -> list[str]:
    """Return the score columns of `prefer` that annotators write, such as `language.score`."""
    names = {name for entry in annotators for name in entry.manifest.details["tables"]}
    return [column for column in score_columns(prefer) if column.partition(".")[0] in names]


def tables_of(
    annotated: StepInput, partitions: Sequence[Partition], columns: Sequence[str], directory: str
) -> list[dict[str, str]]:
    """Return, for each partition of a source, the path, relative to `directory`, of the table that holds each of these
    columns. annotated: the annotate step of the source. Raises CorruptError if it lacks a table.
    """
    here, known = urls.relative(annotated.directory, directory), {part.path for part in annotated.manifest.partitions}
    found = list[dict[str, str]]()
    for partition in partitions:
        names = {column: column.partition(".")[0] for column in columns}
        paths = {
            column: table_path(partition.source, name, urls.name(partition.path)) for column, name in names.items()
        }
        if missing := sorted(set(paths.values()) - known):
            raise CorruptError(f"{annotated.directory} has no {missing[0]}; remove this directory and run again")
        found.append({column: f"{here}/{path}" for column, path in paths.items()})
    return found


def check_phase(tables: Mapping[str, Mapping[str, str]]) -> Iterator[Phase]:
    """Yield a phase that checks the columns before anything else is done. tables: for each source with partitions, the
    table that holds each column.
    """
    if any(tables.values()):
        plain = {source: dict(mine) for source, mine in tables.items()}
        yield Phase("scores", (Task("scores", f"{__name__}:check_tables", {"tables": plain}),))


def check_tables(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Raise ColumnError if a table lacks a column of scores, or if the column does not hold numbers."""
    for source, tables in arguments["tables"].items():
        for column, path in tables.items():
            annotator, _, name = column.partition(".")
            with open_shard(urls.join(context.step_directory, path)) as shard:
                schema = shard.schema_arrow
            known = [field.name for field in schema if field.name != "id"]
            if name not in known:
                raise ColumnError(
                    f"dedup.prefer reads {column}, but the table of {annotator!r} has no such column; "
                    f"{suggestion(name, known)}"
                )
            if not str(schema.field(name).type).startswith(NUMBERS):
                raise ColumnError(
                    f"source {source!r}: {column} has type {schema.field(name).type}, but dedup.prefer needs a column "
                    "of numbers"
                )
    return TaskResult()


class ScoreTable:
    """The scores of the documents of one partition, in order. url: the table. column: its column of scores."""

    def __init__(self, url: str, column: str) -> None:
        self._column = column
        self._tables = iterate_shard(url, ["id", column])
        self._keys, self._scores = np.empty(0, PAIR), np.empty(0, np.float64)

    def of(self, high: np.ndarray, low: np.ndarray) -> np.ndarray:
        """Return the scores of the documents with these ids, which ascend, also from call to call: float64 [N], with
        -inf for a document that has none.
        """
        wanted, found = _pairs(high, low), np.full(len(high), -np.inf)
        while len(wanted):
            if len(self._keys):
                at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
                present = self._keys[at] == wanted
                found[present] = self._scores[at[present]]
                if self._keys[-1].item() >= wanted[-1].item():
                    break
            if not self._read_next():
                break
        return found

    def _read_next(self) -> bool:
        table: pa.Table | None = next(self._tables, None)
        if table is None:
            return False
        self._keys, self._scores = _pairs(*ids_from_arrow(table["id"])), score_values(table[self._column])
        return True


def _pairs(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    pairs = np.empty(len(high), PAIR)
    pairs["high"], pairs["low"] = high, low
    return pairs
