"""Writes the selections of partitions (the format is defined in `storage/selection/leaving_rows.py`), and counts the
documents that leave by combination of reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from datakit.engine.counts import added
from datakit.engine.task import OutputFile, TaskContext, TaskResult
from datakit.errors import CorruptError
from datakit.select.join import Joined, join
from datakit.storage import urls
from datakit.storage.manifest import Partition
from datakit.storage.parquet import ShardWriter
from datakit.storage.selection.leaving_rows import DICTIONARY, SCHEMA

ID_BYTES = 32
DRAFT = "draft"  # in the shared data: the lists will be written again, and are counted only then


@dataclass(frozen=True)
class Pair:
    """A partition (`dataset` is its URL) and the URLs of the lists of its marked documents. output: the path of the
    selection, relative to the step's directory. rows: the partition's row count in the manifest.
    """

    source: str
    dataset: str
    marks: list[str]
    output: str
    rows: int

    @property
    def id_bytes(self) -> int:
        """The size of what is read: the ids of the partition."""
        return self.rows * ID_BYTES


@dataclass(frozen=True)
class Written:
    """A written selection and its counts. combinations: the number of documents that leave, for each combination of
    reasons. marked_kept: the number of marks without effect.
    """

    partition: Partition
    rows_in: int
    combinations: dict[str, int]
    marked_kept: int


def select(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the selections of the given partitions."""
    drop = frozenset(arguments["drop"])
    written: list[Written] = []
    records = 0
    for pair in msgspec.convert(arguments["partitions"], list[Pair]):
        written.append(write_selection(pair, join(pair.dataset, pair.marks, drop), context))
        records += pair.rows
        context.report(records, records * ID_BYTES)
    parts = [entry.partition for entry in written]
    outputs = tuple(OutputFile(part.path, part.bytes, part.xxh3, part.rows) for part in parts)
    details = {"partitions": msgspec.to_builtins(written)}
    counters = {} if DRAFT in shared else selection_counters(written)
    return TaskResult(outputs, counters, details, records=records, bytes_read=records * ID_BYTES)


def selection_counters(written: list[Written]) -> dict[str, int]:
    """Return the counters of written selections."""
    leaving = added(entry.combinations for entry in written)
    records_in = sum(entry.rows_in for entry in written)
    return {
        "select/records_in": records_in,
        "select/records_out": records_in - leaving.total(),
        "select/marked_kept": sum(entry.marked_kept for entry in written),
        **{f"select/dropped_{combination}": count for combination, count in sorted(leaving.items())},
    }


def write_selection(pair: Pair, groups: Iterable[Joined], context: TaskContext) -> Written:
    """Write the selection of a partition. groups: its row groups after the join. Raises CorruptError if the counts
    contradict the partition's manifest.
    """
    rows_in, marked_kept, combinations, ends = 0, 0, Counter[str](), []
    with ShardWriter(urls.join(context.step_directory, pair.output), SCHEMA, DICTIONARY) as writer:
        for joined in groups:
            rows_in += joined.rows_in
            combinations.update(joined.combinations)
            marked_kept += joined.marked_kept
            if joined.leaving.num_rows:
                ids = joined.leaving["id"]
                ends = [ends[0] if ends else ids[0].as_py(), ids[-1].as_py()]
                writer.write(joined.leaving)
    info = writer.info
    if rows_in != pair.rows or info.rows != combinations.total():
        raise CorruptError(
            f"{pair.dataset}: the manifest lists {pair.rows} rows, but {rows_in} were read, and {combinations.total()} "
            f"of them leave ({info.rows} were listed); remove the directory of the step that wrote this file, and run "
            "again"
        )
    first, last = ends or (None, None)
    partition = Partition(pair.output, pair.source, info.rows, info.bytes, info.xxh3, first_id=first, last_id=last)
    return Written(partition, rows_in, dict(combinations), marked_kept)
