"""Runs the tasks of the phases that compare substrings across documents.

    stretches    compares stretches with equal anchors; marks copies, and lists the substrings that remain undecided
    texts        reads the texts of undecided substrings, and routes them by anchor
    substrings   compares undecided substrings one by one

Equal substrings have equal anchors, so they meet in one task of each phase. They arrive in the order of the dataset,
and sorting keeps it. Memory: about 300 MiB, whatever the number of copies, because sorted rows are read in windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.engine.exchange.exchange import ExchangeWriter, in_pieces, read_buckets
from datakit.engine.exchange.row_buckets import bucket_of, read_between
from datakit.engine.exchange.sorted_blocks import sort_rows
from datakit.engine.task import TaskContext, TaskResult
from datakit.errors import CorruptError
from datakit.passages.phase_data import (
    BUDGET_BYTES,
    STRETCH_COPIES,
    SUBSTRING_COPIES,
    TEXTS,
    UNDECIDED,
    Compared,
    PartRange,
    Shared,
    Undecided,
)
from datakit.passages.substrings.compare_stretches import Stretches
from datakit.passages.substrings.compare_substrings import Substrings
from datakit.passages.substrings.repeated_keys import RepeatedKeys
from datakit.passages.substrings.rows import (
    RANGE_ORDER,
    STRETCH_BYTES,
    STRETCH_ORDER,
    SUBSTRING_ORDER,
    UNDECIDED_BYTES,
    sums,
)
from datakit.passages.substrings.undecided_texts import Documents, count_of, substrings_of, texts_of
from datakit.passages.survivors import survivors
from datakit.storage.ids import top_bits


def compare_stretches(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Compare the stretches of one bucket."""
    bucket, common = int(arguments["bucket"]), msgspec.convert(shared, Shared)
    runs = read_buckets(context.step_directory, common.runs, bucket, bucket + 1, context.scratch)
    tables = list(in_pieces(runs))  # mapped
    read, repeated = np.zeros(len(common.searches), np.int64), RepeatedKeys(sum(one.num_rows for one in tables))
    for table in tables:
        search, counts, repeats = (table[name].to_numpy() for name in ("search", "substrings", "repeats"))
        read += sums(search, counts.astype(np.int64) * repeats, len(read))
        repeated.add(table["anchor"])
    rows = sort_rows((repeated.kept(table, "anchor") for table in tables), STRETCH_ORDER, context.scratch)
    stretches, key, size, by_row = Stretches(common.searches), f"{bucket:05d}", 0, common.by_row
    sizes = np.array([one.config.least for one in common.searches], np.int64)
    with (
        ExchangeWriter(context, STRETCH_COPIES, key, by_row.count, BUDGET_BYTES) as spans,
        ExchangeWriter(context, UNDECIDED, key, by_row.count, BUDGET_BYTES) as undecided,
    ):
        for compared in stretches.compare(rows.merged()):
            spans.write(compared.spans, bucket_of(compared.spans["row"].to_numpy(), by_row))
            undecided.write(compared.undecided, bucket_of(compared.undecided["row"].to_numpy(), by_row))
            search, counts = (compared.undecided[name].to_numpy() for name in ("search", "substrings"))
            size += int((sizes[search] - 1 + counts).sum())
            context.report(int(stretches.spans.sum()), 0)
    mine = Compared(spans.runs, read.tolist(), stretches.spans.tolist())
    details = msgspec.to_builtins(Undecided(mine, undecided.runs, stretches.undecided.tolist(), size))
    outputs, records = (*spans.outputs, *undecided.outputs), sum(one.num_rows for one in tables)
    return TaskResult(outputs, {}, details, records=records, bytes_read=records * STRETCH_BYTES)


def read_texts(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Read the texts of the undecided substrings of a range of parts."""
    work, common = msgspec.convert(arguments, PartRange), msgspec.convert(shared, Shared)
    rows = read_between(common.runs, common.by_row, work.parts[0].first_row, work.parts[-1].last_row, context)
    undecided = _UpToRow(sort_rows(rows, RANGE_ORDER, context.scratch).merged())
    records = 0
    with ExchangeWriter(context, TEXTS, f"{work.first:05d}", common.texts, BUDGET_BYTES) as writer:
        for part in work.parts:
            for group in survivors(part, context.step_directory, common.drop):
                documents = Documents(group.rows, group.texts)
                for wanted in undecided.before(int(group.rows[-1]) + 1 if len(group.rows) else 0):
                    for table, anchors in texts_of(documents, wanted, common.searches):
                        writer.write(table, top_bits(anchors, common.texts))
                        records += table.num_rows
                context.report(records, records * UNDECIDED_BYTES)
    undecided.expect_end()
    return TaskResult(
        writer.outputs,
        {},
        {"runs": writer.runs},
        records=records,
        bytes_read=sum(part.text_bytes for part in work.parts),
    )


class _UpToRow:
    """Rows in order of `row`, which are taken up to a given row."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables, self._rest = tables, pa.table({"row": pa.array([], pa.uint64())})

    def before(self, stop: int) -> Iterator[pa.Table]:
        """Yield the rows before `stop` that were not yet taken."""
        while True:
            cut = int(np.searchsorted(self._rest["row"].to_numpy(), stop))
            if cut:
                yield self._rest.slice(0, cut)
            self._rest = self._rest.slice(cut)
            if self._rest.num_rows:
                return
            if (following := next(self._tables, None)) is None:
                return
            self._rest = following

    def expect_end(self) -> None:
        """Raise CorruptError if any rows are left."""
        if next(self.before((1 << 63) - 1), None) is not None:
            raise CorruptError("the exchange holds substrings of a document that no partition has; remove its folder")


def compare_substrings(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Compare the substrings of one bucket."""
    bucket, common = int(arguments["bucket"]), msgspec.convert(shared, Shared)
    runs = read_buckets(context.step_directory, common.runs, bucket, bucket + 1, context.scratch)
    texts = list(in_pieces(runs))  # mapped
    counts = sum((count_of(table, common.searches) for table in texts), np.zeros(len(common.searches), np.int64))
    repeated = RepeatedKeys(int(counts.sum()))
    for table in texts:
        for hashed in substrings_of(table, common.searches):
            repeated.add(hashed["high"])
    kept = (repeated.kept(hashed, "high") for table in texts for hashed in substrings_of(table, common.searches))
    substrings = Substrings(common.searches)
    with ExchangeWriter(context, SUBSTRING_COPIES, f"{bucket:05d}", common.by_row.count, BUDGET_BYTES) as writer:
        for spans in substrings.compare(sort_rows(kept, SUBSTRING_ORDER, context.scratch).merged()):
            writer.write(spans, bucket_of(spans["row"].to_numpy(), common.by_row))
            context.report(int(substrings.spans.sum()), 0)
    details = Compared(writer.runs, counts.tolist(), substrings.spans.tolist())
    records = sum(table.num_rows for table in texts)
    return TaskResult(
        writer.outputs, {}, msgspec.to_builtins(details), records=records, bytes_read=sum(one.nbytes for one in texts)
    )
