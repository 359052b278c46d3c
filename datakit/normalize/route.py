"""Routes a slice: turns its records into documents with ids, samples them, quarantines unusable texts, and writes each
document to the exchange bucket for its id. Each chunk is processed in columnar form, in this order: transform,
predicate, text column, text rules, hash, sample. The top bits of a document's id determine its bucket. A row in the
exchange has the id as two integers, the text, and every upstream column under a prefixed name. In this phase, the types
of columns are united only across the files of a slice. The sort phase converts them to the source's common types.

Cost per MB of text: 1 to 2 ms for reading, 1 ms for the rules and the hash, 2 ms for writing. Memory: one chunk plus
the exchange writer's budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from pyarrow import types

from datakit.engine.exchange.exchange import ExchangeWriter
from datakit.engine.quarantine import SHOWN
from datakit.engine.task import TaskContext, TaskResult
from datakit.errors import ColumnError
from datakit.normalize import formats
from datakit.normalize.config import Config
from datakit.normalize.phase_data import RouteArguments, RouteDetails, RouteShared, to_plain
from datakit.normalize.predicate import Predicate, Transform
from datakit.normalize.readers.base import Chunk, ReadContext
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.slices import SLICE_BYTES, read_slice
from datakit.normalize.record_counts import IN, PREFIX, RecordCounts
from datakit.normalize.schema_union import fit_column
from datakit.normalize.text_rules import apply_rules
from datakit.normalize.upstream_columns import UpstreamColumns
from datakit.storage.fingerprint import config_of
from datakit.storage.ids import ids_from_digests, top_bits
from datakit.text.string_buffers import string_buffers

PHASE = "route"
HIGH, LOW, TEXT = "high", "low", "text"  # our columns in the exchange
UPSTREAM = "."  # prefix for the names of upstream columns in the exchange
BUDGET_BYTES = 256 << 20  # for the exchange writer; a decompressed slice of 64 MiB usually makes one run
WHOLE_SLICE_BYTES = SLICE_BYTES // 2  # a task gives up at the end of its slice only if the slice is at least this large

Texts: TypeAlias = "pa.LargeStringArray | pa.LargeBinaryArray"


class Router:
    """Routes the chunks of one slice, in order. text_bytes: the total size of the texts written so far."""

    def __init__(self, config: Config, counts: RecordCounts, buckets: int) -> None:
        self._config, self._counts, self._buckets = config, counts, buckets
        self._where = Predicate(config.where) if config.where else None
        self._transform = Transform(config.transform) if config.transform else None
        self.columns = UpstreamColumns(config)
        self.text_bytes = 0

    def route(self, chunk: Chunk, write: Callable[[pa.Table, np.ndarray], None]) -> None:
        """Pass the documents of one chunk and the bucket of each to `write`. Raises InputError or PartialError."""
        rows = self._transformed(chunk)
        self.columns.add(rows.file, rows.table.schema)
        if self._where is not None:
            kept = self._where.matches(rows.table, rows.file)
            self._count(where_dropped=len(kept) - int(kept.sum()))
            rows = rows.filter(kept)
        rows, texts = self._texts(rows)
        table, texts = self._apply_rules(rows.table, texts)
        high, low = hash_texts(texts)
        if self._config.sample < 1:
            kept = high < np.uint64(int(self._config.sample * 2.0**64))
            self._count(sample_dropped=len(kept) - int(kept.sum()))
            mask = pa.array(kept)
            table, texts, high, low = table.filter(mask), texts.filter(mask), high[kept], low[kept]
        write(_exchange_rows(table, self.columns.union, texts, high, low), top_bits(high, self._buckets))
        self.text_bytes += int(np.diff(string_buffers(texts)[1]).sum())

    def _transformed(self, chunk: Chunk) -> Chunk:
        """Apply the transform. If this changes the number of rows, all rows get the chunk's first position."""
        if self._transform is None:
            return chunk
        table = self._transform.apply(chunk.table)
        change = table.num_rows - chunk.table.num_rows
        self._count(transform_added=max(0, change), transform_dropped=max(0, -change))
        positions = chunk.positions if change == 0 else np.full(table.num_rows, chunk.positions[0])
        return replace(chunk, table=table, positions=positions, files=())

    def _texts(self, rows: Chunk) -> tuple[Chunk, Texts]:
        """Return the rows with a usable text, and their texts. A null counts as a blank text and is removed later."""
        if self._config.text not in rows.table.column_names:
            return rows, pa.nulls(rows.table.num_rows, pa.large_string())
        kind = rows.table.column(self._config.text).type
        if kind not in (pa.null(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
            rows = self._without_wrong_types(rows, kind)
            return rows, pa.nulls(rows.table.num_rows, pa.large_string())
        wide = pa.large_binary() if types.is_binary(kind) or types.is_large_binary(kind) else pa.large_string()
        chunks = fit_column(rows.table.column(self._config.text), wide).chunks
        texts = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else pa.array([], wide)
        return self._short_enough(rows, texts)

    def _without_wrong_types(self, rows: Chunk, kind: pa.DataType) -> Chunk:
        """Quarantine JSON records whose text is not a string. Raises ColumnError if the file has another format or a
        transform was applied.
        """
        if self._transform is not None or formats.format_of(rows.file, self._config.format) != formats.JSON:
            raise ColumnError(
                f"{rows.file}: column {self._config.text!r} is {kind}, not text; set the source's text to another "
                "column, or convert this one to strings with a transform"
            )
        valued = rows.table.column(self._config.text).is_valid().to_numpy()
        for position in rows.positions[valued].tolist():
            self._counts.unusable(rows.file, position, f"{self._config.text!r} is {_json_kind(kind)}, not a string")
        return rows.filter(~valued)

    def _short_enough(self, rows: Chunk, texts: Texts) -> tuple[Chunk, Texts]:
        limit = self._config.max_document_bytes
        kept = np.diff(string_buffers(texts)[1]) <= limit
        if kept.all():
            return rows, texts
        for position in rows.positions[~kept].tolist():
            self._counts.unusable(rows.file, position, f"longer than max_document_bytes ({limit})")
        return rows.filter(kept), texts.filter(pa.array(kept))

    def _apply_rules(self, table: pa.Table, texts: Texts) -> tuple[pa.Table, pa.LargeStringArray]:
        ruled = apply_rules(texts, self._config.whitespace_run)
        self._count(blank=ruled.blank, invalid_utf8=ruled.invalid_utf8, nul=ruled.nul)
        self._count(whitespace_runs=ruled.whitespace_runs)
        if not ruled.blank:
            return table, ruled.texts
        kept = pa.array(ruled.kept)
        return table.filter(kept), ruled.texts.filter(kept)

    def _count(self, **counts: int) -> None:
        for name, count in counts.items():
            self._counts.counters[PREFIX + name] += count


def _json_kind(kind: pa.DataType) -> str:
    if types.is_struct(kind):
        return "an object"
    if types.is_list(kind):
        return "an array"
    return "a literal" if types.is_boolean(kind) else "a number"


def hash_texts(texts: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the xxh3-128 hash of each text's bytes as two arrays (high, low), uint64 [texts] each."""
    data, offsets = string_buffers(texts)
    view, ends = data.data, offsets.tolist()
    # with `map` over slices of one buffer, the loop runs in C
    digests = map(xxhash.xxh3_128_digest, map(view.__getitem__, map(slice, ends[:-1], ends[1:])))
    return ids_from_digests(b"".join(digests))


def _exchange_rows(table: pa.Table, union: pa.Schema, texts: pa.Array, high: np.ndarray, low: np.ndarray) -> pa.Table:
    have = set(table.column_names)
    others = [
        fit_column(table.column(field.name), field.type) if field.name in have else pa.nulls(len(texts), field.type)
        for field in union
    ]
    names = [HIGH, LOW, TEXT, *(UPSTREAM + name for name in union.names)]
    return pa.table([pa.array(high), pa.array(low), texts, *others], names=names)


def route_slice(arguments: dict[str, Any], shared: dict[str, Any], task: TaskContext) -> TaskResult:
    """Route one slice. Raises InputError or PartialError."""
    own, common = msgspec.convert(arguments, RouteArguments), msgspec.convert(shared, RouteShared)
    config, inputs = config_of(common.config, Config), Inputs(common.base, own.listed)
    counts = RecordCounts(task.tolerance)
    context = ReadContext(inputs, config, counts, replace(task, hold=_hold_or_give_up(counts, task)))
    router, bytes_read = Router(config, counts, common.buckets), 0
    with ExchangeWriter(task, PHASE, own.key, common.buckets, BUDGET_BYTES, before_commit=inputs.check) as writer:
        for chunk in read_slice(context, own.ranges):
            router.route(_without_skipped(chunk, context, common.buckets), writer.write)
            bytes_read += chunk.bytes_read
            task.report(counts.counters[IN], bytes_read)
            task.release()
    if sum(part.weight for part in own.ranges) >= WHOLE_SLICE_BYTES:
        counts.give_up_if_hopeless(SHOWN)
    router.columns.check_text()
    details = to_plain(RouteDetails(writer.runs, router.columns.schemas(), router.text_bytes))
    records, quarantined = counts.counters[IN], tuple(counts.quarantined)
    return TaskResult(writer.outputs, dict(counts.counters), details, quarantined, records, bytes_read)


def _hold_or_give_up(counts: RecordCounts, task: TaskContext) -> Callable[[str, int, int], None]:
    """Return `hold` for readers: it fails the task if nearly all records so far are unusable, else calls `task.hold`.

    Readers call `hold` at the start of each chunk, when all earlier chunks are fully counted. Checking only at the end
    of the slice would be too late: a compressed file is never cut, so its slice may hold many GB of bad records.
    """

    def hold(file: str, position: int, records: int) -> None:
        counts.give_up_if_hopeless()
        task.hold(file, position, records)

    return hold


def _without_skipped(chunk: Chunk, context: ReadContext, buckets: int) -> Chunk:
    """Announce the chunk (see TaskContext.records), and return it without the records that must be left out."""

    def try_record(row: int) -> None:
        Router(context.config, context.for_trial().counts, buckets).route(chunk.single(row), lambda *rows: None)

    kept, left_out = context.task.records(chunk.record_files, chunk.positions, try_record)
    for record in left_out:
        context.counts.unusable(record.file, record.position, record.reason)
    return chunk if kept is None else chunk.filter(kept)
