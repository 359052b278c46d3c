"""Phase `exact`: finds documents with equal ids (equal texts) in several sources; the first of these sources in the
recipe keeps the document. An id is a hash of the text. Each partition holds a range of ids, in sorted order. A task
merges the ids of one range from all sources. If a file spans several ranges, the task reads only the row groups that,
according to their statistics, may hold ids in the task's range. It reads the ids from the signature files, not from the
documents. Each removed row is routed by its number (`row_buckets.py`).

Cost: a stable sort of sorted sequences, which amounts to a merge. Memory: about 200 MiB for any number of ids and
sources, because ids that do not fit in one block are merged from scratch files (`sorted_blocks.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.dedup.partitions import Part, left_out
from datakit.dedup.phase_data import IdRange, PartRange, Runs, Shared
from datakit.dedup.row_buckets import read_rows
from datakit.engine.exchange.exchange import ExchangeWriter
from datakit.engine.exchange.row_buckets import bucket_of, power_of_two
from datakit.engine.exchange.sorted_blocks import sort_rows
from datakit.engine.task import Task, TaskContext, TaskResult
from datakit.storage import urls
from datakit.storage.ids import ids_from_arrow, partition_range, top_bits
from datakit.storage.parquet import open_shard, read_group

EXCHANGE = "copies-by-row"  # the name of the exchange that lists the removed rows
SCHEMA = pa.schema([(name, pa.uint64()) for name in ("row", "high", "low", "kept_row")])
IDS = ("high", "low")
ID_BYTES = 32
TARGET_BYTES = 64 << 20


def tasks(parts: Sequence[Part]) -> tuple[Task, ...]:
    """Return one task per range of about 64 MiB of ids, but no more tasks than the largest source has partitions."""
    size = sum(part.rows for part in parts) * ID_BYTES
    ranges = min(power_of_two(size / TARGET_BYTES), max(part.count for part in parts))
    bits, function = ranges.bit_length() - 1, "datakit.dedup.exact_duplicates:find_copies"
    mine: list[list[dict[str, Any]]] = [[] for _ in range(ranges)]
    for part in parts:
        if part.rows:
            plain = msgspec.to_builtins(part)  # all tasks that read a part share this value
            for index in _ranges_of(part, ranges):
                mine[index].append(plain)
    arguments = ({"range": index, "bits": bits, "parts": found} for index, found in enumerate(mine))
    return tuple(Task(f"{one['range']:05d}", function, one, size >> bits) for one in arguments)


def _ranges_of(part: Part, ranges: int) -> range:
    """Return the ranges of ids that overlap a part.

    >>> part = Part("s", 0, 1, 4, 0, 9, "", "", 0, 0)
    >>> _ranges_of(part, 1), _ranges_of(part, 8)
    (range(0, 1), range(2, 4))
    """
    return range(part.index * ranges // part.count, -(-(part.index + 1) * ranges // part.count))


def find_copies(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """For one range of ids, write the rows whose id occurs in an earlier source and, for each, the row kept instead."""
    work, buckets = msgspec.convert(arguments, IdRange), msgspec.convert(shared, Shared).buckets
    found = sort_rows(_ids_in_range(work, context.step_directory), IDS, context.scratch)
    with ExchangeWriter(context, EXCHANGE, f"{work.range:05d}", buckets.count, budget_bytes=64 << 20) as writer:
        for table in copies(found.merged()):
            writer.write(table, bucket_of(table["row"].to_numpy(), buckets))
    details = msgspec.to_builtins(Runs(writer.runs))
    return TaskResult(writer.outputs, details=details, records=found.count, bytes_read=found.count * ID_BYTES)


def copies(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows whose id also occurs in an earlier row. Their column `kept_row` is the first row with the same id.

    tables: the columns `high`, `low` and `row`, sorted by id and then by row; rows with one id may be in many tables.
    """
    last, kept = None, np.zeros(1, np.uint64)
    for table in tables:
        high, low, row = (table.column(name).to_numpy() for name in ("high", "low", "row"))
        first = np.ones(len(row), bool)
        first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        first[0] = (high[0], low[0]) != last
        kept_at = np.maximum.accumulate(np.where(first, 1 + np.arange(len(row)), 0))
        kept_rows = np.concatenate([kept, row])[kept_at]
        again = ~first
        yield pa.table([row[again], high[again], low[again], kept_rows[again]], schema=SCHEMA)
        last, kept = (high[-1], low[-1]), kept_rows[-1:]


def _ids_in_range(work: IdRange, step_directory: str) -> Iterator[pa.Table]:
    """For each row group, yield its ids in the task's range, as columns `high` and `low`, and their row numbers."""
    smallest, largest = partition_range(work.range, work.bits)
    for part in work.parts:
        url = urls.join(step_directory, part.signatures)
        with open_shard(url) as shard:
            row, leaving = part.first_row, left_out(part, step_directory)
            for group in range(shard.metadata.num_row_groups):
                about = shard.metadata.row_group(group)
                bounds = about.column(0).statistics
                if bounds is None or not bounds.has_min_max or (bounds.max >= smallest and bounds.min <= largest):
                    ids = read_group(shard, group, url, ["id"])["id"]
                    high, low = ids_from_arrow(ids)
                    inside = top_bits(high, 1 << work.bits) == work.range
                    inside[leaving.among(ids)] = False
                    rows = (row + np.flatnonzero(inside)).astype(np.uint64)
                    yield pa.table({"high": high[inside], "low": low[inside], "row": rows})
                row += about.num_rows
                leaving.skip_to(row - part.first_row)


def removed_rows(shared: Shared, context: TaskContext, parts: PartRange) -> pa.Table:
    """Return the rows removed from these parts as a table with this phase's SCHEMA, in ascending order of row."""
    tables = list(read_rows(shared.exact_runs, shared.buckets, parts, context))
    return pa.concat_tables([SCHEMA.empty_table(), *tables]).combine_chunks().sort_by("row")
