"""Finds documents whose texts became equal by editing. If several documents that stay have equal texts, and at least
one of them was edited, all but the first are found. The first is that of the first source in the recipe; within a
source, that with the smallest id.

Phase `edited` routes the ids of the edited texts by their upper bits. In phase `equal`, a task compares the edited ids
of one range with one another, and with the ids of documents in this range whose texts were not edited. Partitions hold
ranges of ids, so these need no shuffle.

Cost: the list of edits, sorted, and the ids of all documents. Memory: about 200 MiB and the distinct edited ids of a
range; the rows themselves are sorted in blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.engine.exchange.exchange import ExchangeWriter, read_buckets
from datakit.engine.exchange.sorted_blocks import sort_rows
from datakit.engine.task import TaskContext, TaskResult
from datakit.storage.ids import ids_from_arrow, partition_range, top_bits
from datakit.storage.parquet import iterate_shard, open_shard, read_group
from datakit.storage.selection.edits import SCHEMA as EDITS
from datakit.storage.selection.leaving_rows import LeavingRows
from datakit.storage.selection.listed_rows import ListedRows

EQUAL = "equal_after_editing"  # the reason, and the setting
EDITED_EXCHANGE, EQUAL_EXCHANGE = "edited-by-text", "equal-by-partition"
SCHEMA = pa.schema([(name, pa.uint64()) for name in ("high", "low", "part", "row")])
KEYS = ("high", "low", "part", "row")
BUDGET = 64 << 20
ROW_BYTES = 64
LEAST_MERGED = 1 << 16  # ids that are collected before they are sorted
PAIR = np.dtype([("high", np.uint64), ("low", np.uint64)])


@dataclass(frozen=True)
class Compared:
    """Partition `number` of the dataset, the `index`th of the `count` partitions of its source. leaving, edits: the
    URLs of its lists; None if they are empty.
    """

    number: int
    index: int
    count: int
    dataset: str
    rows: int
    leaving: str | None
    edits: str | None

    def ranges(self, ranges: int) -> range:
        """Return which of `ranges` equal ranges of ids overlap the partition."""
        return range(self.index * ranges // self.count, -(-(self.index + 1) * ranges // self.count))


@dataclass(frozen=True)
class Comparison:
    """Plain data for the tasks of both phases. ranges: the number of ranges of ids. buckets: that of the exchange that
    lists the equal documents, by partition. firsts: each source with the number of its first partition. runs: those of
    phase `edited`.
    """

    ranges: int
    buckets: int
    firsts: list[tuple[str, int]]
    runs: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class EqualRows:
    """The runs that list the documents whose text equals that of an earlier one."""

    runs: list[str]

    def of(self, number: int, context: TaskContext) -> np.ndarray:
        """Return the rows of these documents in one partition, int64."""
        tables = read_buckets(context.step_directory, self.runs, number, number + 1, context.scratch)
        parts = [table["row"].to_numpy().astype(np.int64) for table in tables]
        return np.unique(np.concatenate([np.empty(0, np.int64), *parts]))


def route(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Route the ids of the edited texts of some partitions by their upper bits."""
    common, parts = msgspec.convert(shared, Comparison), msgspec.convert(arguments["partitions"], list[Compared])
    records = 0
    with ExchangeWriter(context, EDITED_EXCHANGE, f"{parts[0].number:06d}", common.ranges, BUDGET) as writer:
        for part in parts:
            for table in iterate_shard(part.edits, ["row", "edited_id"]) if part.edits is not None else ():
                rows = _rows(*ids_from_arrow(table["edited_id"]), part.number, table["row"].to_numpy())
                writer.write(rows, top_bits(rows["high"].to_numpy(), common.ranges))
                records += table.num_rows
    return TaskResult(writer.outputs, details={"runs": writer.runs}, records=records, bytes_read=records * ROW_BYTES)


def find(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """List the documents whose text has an id in one range and equals that of an earlier document."""
    common, number = msgspec.convert(shared, Comparison), int(arguments["range"])

    def edited() -> Iterator[pa.Table]:
        return read_buckets(context.step_directory, common.runs, number, number + 1, context.scratch)

    known = _distinct(edited())
    parts = msgspec.convert(arguments["partitions"], list[Compared])
    ends = partition_range(number, common.ranges.bit_length() - 1)
    others = (table for part in parts for table in _unedited(part, known, ends))
    found, counts = sort_rows(chain(edited(), others), KEYS, context.scratch), Counter[str]()
    starts, names = np.array([first for _, first in common.firsts]), [name for name, _ in common.firsts]
    with ExchangeWriter(context, EQUAL_EXCHANGE, f"{number:06d}", common.buckets, BUDGET) as writer:
        for table in later_ones(found.merged()):
            part = table["part"].to_numpy().astype(np.int64)
            writer.write(table, part)
            places, sizes = np.unique(np.searchsorted(starts, part, "right") - 1, return_counts=True)
            counts.update({names[place]: size for place, size in zip(places.tolist(), sizes.tolist(), strict=True)})
    details = {"runs": writer.runs, "equal": dict(counts)}
    return TaskResult(writer.outputs, details=details, records=found.count, bytes_read=found.count * ROW_BYTES)


def _rows(high: np.ndarray, low: np.ndarray, part: int, rows: np.ndarray) -> pa.Table:
    numbers = np.full(len(high), part, np.uint64)
    return pa.table([high, low, numbers, rows.astype(np.uint64)], schema=SCHEMA)


def _distinct(tables: Iterable[pa.Table]) -> np.ndarray:
    """Return the distinct ids, as a sorted array of PAIR. New ids are merged only when they are as many as the known
    ones, because each merge sorts all of them again, and there may be a table per run.
    """
    known, waiting, count = np.empty(0, PAIR), list[np.ndarray](), 0
    for table in tables:
        waiting.append(_pairs(table["high"].to_numpy(), table["low"].to_numpy()))
        count += len(waiting[-1])
        if count >= max(len(known), LEAST_MERGED):
            known, waiting, count = _merged(known, waiting), [], 0
    return _merged(known, waiting) if waiting else known


def _merged(known: np.ndarray, more: Sequence[np.ndarray]) -> np.ndarray:
    """Return the distinct ids of all arrays, sorted. Two columns of integers sort several times faster than PAIR."""
    pairs = np.concatenate([known, *more])
    high, low = np.ascontiguousarray(pairs["high"]), np.ascontiguousarray(pairs["low"])
    order = np.lexsort((low, high))
    high, low = high[order], low[order]
    first = np.ones(len(order), bool)
    first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return _pairs(high[first], low[first])


def _pairs(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    pairs = np.empty(len(high), PAIR)
    pairs["high"], pairs["low"] = high, low
    return pairs


def _unedited(part: Compared, known: np.ndarray, ends: tuple[str, str]) -> Iterator[pa.Table]:
    """Yield the documents of a partition that stay unedited and whose ids are known. ends: the smallest and the largest
    possible id of the range; row groups without such ids are not read.
    """
    if not len(known):
        return
    leaving, edits = LeavingRows(part.leaving, part.dataset), ListedRows(part.edits, part.dataset, EDITS)
    upper, first = np.ascontiguousarray(known["high"]), 0
    with open_shard(part.dataset) as shard:
        for group in range(shard.metadata.num_row_groups):
            about = shard.metadata.row_group(group)
            bounds = about.column(0).statistics
            if bounds is None or not bounds.has_min_max or (bounds.max >= ends[0] and bounds.min <= ends[1]):
                ids = read_group(shard, group, part.dataset, ["id"])["id"]
                high, low = ids_from_arrow(ids)
                near = np.minimum(np.searchsorted(upper, high), len(known) - 1)
                chosen = upper[near] == high  # the search for whole ids is slow, and few documents are left for it
                chosen[leaving.among(ids)] = chosen[edits.take(ids)[0]] = False
                rows = np.flatnonzero(chosen)
                pairs = _pairs(high[rows], low[rows])
                rows = rows[known[np.minimum(np.searchsorted(known, pairs), len(known) - 1)] == pairs]
                yield _rows(high[rows], low[rows], part.number, first + rows)
            first += about.num_rows
            leaving.skip_to(first)
            edits.skip_to(first)


def later_ones(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows whose id also occurs in an earlier row. tables: sorted by KEYS."""
    last = None
    for table in tables:
        if not table.num_rows:
            continue
        pairs = _pairs(table["high"].to_numpy(), table["low"].to_numpy())
        again = np.zeros(len(pairs), bool)
        again[1:] = pairs[1:] == pairs[:-1]
        again[0] = last is not None and bool(pairs[0] == last)
        last = pairs[-1]
        yield table.filter(pa.array(again))
