"""Phase `write`: writes one table per partition, which lists the spans of its documents in the form of an annotator's
table: `id`, and for each search a column of spans. A document without spans has no row.

Cost: sorting the spans, and decoding the ids of row groups with spans. Memory: about 200 MiB, and the spans of one
document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.engine.exchange.row_buckets import read_between
from datakit.engine.exchange.sorted_blocks import sort_rows
from datakit.engine.task import OutputFile, TaskContext, TaskResult
from datakit.errors import CorruptError
from datakit.passages.config import SUBSTRING
from datakit.passages.phase_data import Part, PartRange, Search, SearchCounts, Shared, Tables, Written
from datakit.passages.stage import schema_of
from datakit.passages.substrings.join_spans import Joining, joined_spans
from datakit.storage import urls
from datakit.storage.ids import ADVICE
from datakit.storage.manifest import Partition
from datakit.storage.parquet import ShardWriter, open_shard, read_group
from datakit.text.spans import SPAN, SPANS


def write(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the tables of a range of parts."""
    work, common = msgspec.convert(arguments, PartRange), msgspec.convert(shared, Shared)
    rows = read_between(common.runs, common.by_row, work.parts[0].first_row, work.parts[-1].last_row, context)
    ordered = sort_rows(rows, ["row", "start", "stop", "search"], context.scratch).merged()
    joining = Joining(common.searches)
    spans = _ByDocument(map(joining.joined, ordered))
    written, records = list[Written](), 0
    for part in work.parts:
        written.append(_write_one(part, spans, common.searches, context))
        records += part.rows
        context.report(records, 0)
    spans.expect_end()
    outputs = tuple(
        OutputFile(part.path, part.bytes, part.xxh3, part.rows) for part in (one.partition for one in written)
    )
    totals = [sum((one.counts[each.number] for one in written), SearchCounts()) for each in common.searches]
    counters = dict[str, int]()
    for one, total in zip(common.searches, totals, strict=True):
        counters[f"passages/marked/{one.name}"] = total.marked
        counters[f"passages/marked_bytes/{one.name}"] = total.marked_bytes
    details = msgspec.to_builtins(Tables(written, joining.read.tolist()))
    return TaskResult(outputs, counters, details, records=records)


class _ByDocument:
    """Spans in order of row, which are taken up to a given row. Those of a document are never divided."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = tables
        self._waiting: list[pa.Table] = []  # of one document, or the rest of a table

    def up_to(self, stop: int) -> Iterator[pa.Table]:
        """Yield the spans of rows before `stop`, in tables that hold whole documents."""
        while True:
            if not self._waiting and not self._read():
                return
            last = self._waiting[-1]
            rows = last["row"].to_numpy()
            if rows[-1] >= stop:
                cut = int(np.searchsorted(rows, stop))
                yield from _nonempty([*self._waiting[:-1], last.slice(0, cut)])
                self._waiting = [last.slice(cut)]
                return
            cut = int(np.searchsorted(rows, rows[-1]))  # the last document may continue in the next table
            if cut:
                yield from _nonempty([*self._waiting[:-1], last.slice(0, cut)])
                self._waiting = [last.slice(cut)]
            if not self._read():
                yield from _nonempty(self._waiting)
                self._waiting = []
                return
            if self._waiting[-1]["row"][0].as_py() != rows[-1]:
                yield from _nonempty(self._waiting[:-1])
                self._waiting = self._waiting[-1:]

    def expect_end(self) -> None:
        """Raise CorruptError if any spans are left."""
        if self._waiting or self._read():
            raise CorruptError("the exchange holds spans of a document that no partition has; remove the step's folder")

    def _read(self) -> bool:
        for table in self._tables:
            if table.num_rows:
                self._waiting.append(table)
                return True
        return False


def _nonempty(tables: Sequence[pa.Table]) -> Iterator[pa.Table]:
    whole = pa.concat_tables(tables)
    if whole.num_rows:
        yield whole.combine_chunks()


class _Ids:
    """The ids of a partition, of which only the row groups that are asked for are decoded."""

    def __init__(self, part: Part, directory: str) -> None:
        self._url, self._part = urls.join(directory, part.documents), part
        self._shard = open_shard(self._url)
        metadata = self._shard.metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._ends = part.first_row + np.cumsum(sizes)
        if sum(sizes) != part.rows:
            raise CorruptError(f"{self._url} has {sum(sizes)} rows, but its manifest states {part.rows}; {ADVICE}")

    def of(self, rows: np.ndarray) -> pa.Array:
        """Return the ids of ascending rows."""
        groups = np.searchsorted(self._ends, rows, side="right")
        found = []
        for group in np.unique(groups).tolist():
            first = int(self._ends[group - 1]) if group else self._part.first_row
            ids = read_group(self._shard, group, self._url, ["id"])["id"]
            found.append(ids.take(pa.array(rows[groups == group] - first)).combine_chunks())
        return pa.concat_arrays(found)

    def __enter__(self) -> _Ids:
        return self

    def __exit__(self, *error: object) -> None:
        self._shard.close()


def _write_one(part: Part, spans: _ByDocument, searches: Sequence[Search], context: TaskContext) -> Written:
    counts, first, last = [SearchCounts()] * len(searches), None, None
    url = urls.join(context.step_directory, part.output)
    with ShardWriter(url, schema_of(searches)) as writer, _Ids(part, context.step_directory) as ids:
        for table in spans.up_to(part.last_row):
            written, found = _documents(table, ids, searches)
            writer.write(written)
            counts = [mine + yours for mine, yours in zip(counts, found, strict=True)]
            first, last = first or written["id"][0].as_py(), written["id"][-1].as_py()
    info = writer.info
    partition = Partition(part.output, part.source, info.rows, info.bytes, info.xxh3, first_id=first, last_id=last)
    return Written(partition, counts)


def _documents(table: pa.Table, ids: _Ids, searches: Sequence[Search]) -> tuple[pa.Table, list[SearchCounts]]:
    """Return one row per document, and the counts of each search. table: spans of whole documents, in order."""
    rows, starts, stops, numbers = (table[name].to_numpy() for name in ("row", "start", "stop", "search"))
    documents, places = np.unique(rows.astype(np.int64), return_inverse=True)
    columns, counts = [ids.of(documents)], list[SearchCounts]()
    for search in searches:
        mine = np.flatnonzero(numbers == search.number)
        begin, end = starts[mine].astype(np.uint64), stops[mine].astype(np.uint64)
        if search.config.unit == SUBSTRING:  # those of a document may come from several tables
            first, end = joined_spans(places[mine], starts[mine], stops[mine])
            mine, begin, end = mine[first], begin[first], end.astype(np.uint64)
        ends = np.searchsorted(places[mine], np.arange(len(documents) + 1)).astype(np.int32)
        kinds = pa.DictionaryArray.from_arrays(np.zeros(len(mine), np.int8), [search.config.unit]).cast(pa.string())
        places_of = [pa.array(begin), pa.array(end), kinds]
        values = pa.StructArray.from_arrays(places_of, fields=list(SPAN))
        columns.append(pa.ListArray.from_arrays(pa.array(ends), values, type=SPANS))
        size = int(end.sum() - begin.sum())
        counts.append(SearchCounts(0, len(mine), size, int((np.diff(ends) > 0).sum())))
    return pa.Table.from_arrays(columns, schema=schema_of(searches)), counts
