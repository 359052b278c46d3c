"""Phase `passages`: finds the passages of the documents that stay, and routes them by hash, so that all copies of a
passage meet in one task. Copies within documents are found here, because they need no exchange; their spans are routed
by row. Searches for substrings route stretches of substrings by anchor instead (`substrings/anchor_kernels.py`).

A passage takes 33 bytes in the exchange, whatever its length. Passages with equal hashes of 128 bits count as copies.
Memory: a row group of texts, the budget of an exchange writer and, for searches within documents, the passages of one
document.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from datakit.engine.exchange.exchange import ExchangeWriter
from datakit.engine.exchange.row_buckets import bucket_of
from datakit.engine.task import TaskContext, TaskResult
from datakit.passages.config import DATASET, DOCUMENT, SUBSTRING
from datakit.passages.find_passages import Found, find_passages, rules_of
from datakit.passages.kernels import Rules
from datakit.passages.phase_data import (
    BUDGET_BYTES,
    PASSAGES,
    REPEATS,
    SPAN,
    STRETCHES,
    Part,
    PartRange,
    Read,
    Routed,
    Search,
    Shared,
)
from datakit.passages.repeats import repeated
from datakit.passages.substrings.find_stretches import as_table, find_stretches, settings_of
from datakit.passages.substrings.undecided_texts import Documents
from datakit.passages.substrings.within_documents import WithinDocuments
from datakit.passages.survivors import survivors
from datakit.storage.ids import top_bits

PASSAGE = pa.schema([("high", pa.uint64()), ("low", pa.uint64()), *SPAN])


class Writers(NamedTuple):
    """The writers of the exchanges: passages, spans of copies within documents, and stretches of substrings. None if
    the searches do not need an exchange.
    """

    passages: ExchangeWriter | None
    spans: ExchangeWriter | None
    stretches: ExchangeWriter | None


class Finder:
    """Runs all searches on texts, and writes what they find. found, repeated: for each search, the numbers of passages
    and of spans so far.
    """

    def __init__(self, shared: Shared, writers: Writers, scratch: Path) -> None:
        self._shared, self._writers, self._scratch = shared, writers, scratch
        self.found = np.zeros(len(shared.searches), np.int64)
        self.repeated = np.zeros(len(shared.searches), np.int64)

    def run(self, rows: np.ndarray, texts: pa.ChunkedArray) -> None:
        """Search documents with these row numbers and texts."""
        for search in self._shared.searches:
            if search.config.unit == SUBSTRING:
                find = self._route_stretches if search.config.within == DATASET else self._mark_substrings
                find(search, Documents(rows, texts))
                continue
            rules = rules_of(search.config, search.number)
            if search.config.within == DATASET:
                self._route(search, rules, rows, texts)
            else:
                self._mark(search, rules, rows, texts)

    def _route_stretches(self, search: Search, documents: Documents) -> None:
        assert self._writers.stretches is not None
        for found in find_stretches(documents.texts, settings_of(search.config.least, search.number)):
            table = as_table(found, documents.rows, search)
            self._writers.stretches.write(table, top_bits(found.anchors, self._shared.stretches))
            self.found[search.number] += int((found.substrings * found.repeats).sum())

    def _mark_substrings(self, search: Search, documents: Documents) -> None:
        assert self._writers.spans is not None
        within = WithinDocuments(self._shared.searches, self._scratch)
        for table in within.find(search, documents):
            self._writers.spans.write(table, bucket_of(table["row"].to_numpy(), self._shared.by_row))
        self.found += within.read
        self.repeated += within.spans

    def _route(self, search: Search, rules: Rules, rows: np.ndarray, texts: pa.ChunkedArray) -> None:
        assert self._writers.passages is not None
        for found in find_passages(texts, rules):
            hashes = [pa.array(column.copy()) for column in (found.high, found.low)]  # `found` is overwritten
            table = pa.Table.from_arrays([*hashes, *_places(found, rows, search.number)], schema=PASSAGE)
            self._writers.passages.write(table, top_bits(found.high, self._shared.buckets))
            self.found[search.number] += len(found.high)

    def _mark(self, search: Search, rules: Rules, rows: np.ndarray, texts: pa.ChunkedArray) -> None:
        assert self._writers.spans is not None
        for found in _whole_documents(find_passages(texts, rules)):
            self.found[search.number] += len(found.high)
            marked = repeated(found.texts, found.high, found.low, search.config)
            chosen = Found(*(column[marked] for column in found))
            table = pa.Table.from_arrays(_places(chosen, rows, search.number), schema=SPAN)
            self._writers.spans.write(table, bucket_of(table["row"].to_numpy(), self._shared.by_row))
            self.repeated[search.number] += table.num_rows


def _places(found: Found, rows: np.ndarray, number: int) -> list[pa.Array]:
    """Return the columns of SPAN. rows: the row number of each text."""
    return [
        pa.array(rows[found.texts].astype(np.uint64)),
        pa.array(found.starts.astype(np.uint32)),
        pa.array(found.stops.astype(np.uint32)),
        pa.array(np.full(len(found.texts), number, np.uint8)),
    ]


def _whole_documents(batches: Iterator[Found]) -> Iterator[Found]:
    """Yield the passages of whole documents: those of the last document of a batch wait for the next batch."""
    waiting: list[Found] = []
    for found in batches:
        cut = int(np.searchsorted(found.texts, found.texts[-1]))
        if cut:
            yield _joined([*waiting, Found(*(column[:cut] for column in found))])
            waiting = []
        elif waiting and waiting[-1].texts[-1] != found.texts[0]:
            yield _joined(waiting)
            waiting = []
        waiting.append(Found(*(column[cut:].copy() for column in found)))
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[Found]) -> Found:
    return parts[0] if len(parts) == 1 else Found(*map(np.concatenate, zip(*parts, strict=True)))


def route(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Find the passages of a range of parts."""
    work, common = msgspec.convert(arguments, PartRange), msgspec.convert(shared, Shared)
    records = size = 0
    read = list[Read]()
    with ExitStack() as stack:
        writers = _writers(common, context, f"{work.first:05d}", stack)
        finder = Finder(common, writers, context.scratch)
        for part in work.parts:
            read.append(_read(part, finder, common, context, (records, size)))
            records, size = records + part.rows, size + part.text_bytes
    outputs = tuple(output for writer in writers if writer is not None for output in writer.outputs)
    passages, spans, stretches = ([] if writer is None else writer.runs for writer in writers)
    details = msgspec.to_builtins(Routed(passages, spans, stretches, read, finder.repeated.tolist()))
    counters = {
        "passages/documents": sum(one.documents for one in read),
        "passages/left_out": sum(one.left_out for one in read),
    }
    counters |= {f"passages/found/{one.name}": int(finder.found[one.number]) for one in common.searches}
    return TaskResult(outputs, counters, details, records=records, bytes_read=size)


def _writers(common: Shared, context: TaskContext, key: str, stack: ExitStack) -> Writers:
    """Open the writers that the searches need."""
    units = {(one.config.unit == SUBSTRING, one.config.within) for one in common.searches}
    needed = (
        (PASSAGES, common.buckets, (False, DATASET) in units),
        (REPEATS, common.by_row.count, DOCUMENT in {within for _, within in units}),
        (STRETCHES, common.stretches, (True, DATASET) in units),
    )
    return Writers(
        *(
            stack.enter_context(ExchangeWriter(context, name, key, buckets, BUDGET_BYTES)) if used else None
            for name, buckets, used in needed
        )
    )


def _read(part: Part, finder: Finder, common: Shared, context: TaskContext, before: tuple[int, int]) -> Read:
    """Search a part. before: the documents and bytes that were read before it."""
    documents = left_out = size = 0
    found = finder.found.copy()
    for group in survivors(part, context.step_directory, common.drop):
        finder.run(group.rows, group.texts)
        documents, left_out = documents + len(group.rows), left_out + group.left_out
        size += group.texts.nbytes
        context.report(before[0] + documents + left_out, before[1] + size)
    return Read(documents, left_out, (finder.found - found).tolist())
