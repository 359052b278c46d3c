"""Routes a slice: turns its records into documents with ids, samples them, quarantines unusable texts, and writes each
document to the exchange bucket for its id. Each chunk is processed in columnar form, in this order: split, transform,
text, predicate, text rules, hash, sample, limit. The top bits of a document's id determine its bucket. A row in the
exchange holds the id as two integers, the text, the record's file and position, and every upstream column that is
carried, under a prefixed name.
In this phase, the types of columns are unified only across the files of a slice. The sort phase converts the columns to
the source's common types.

A file of a few MB may expand to many GB of rows. A slice is refused as soon as its values take up more bytes than its
task may write (`engine/disk_limits.py`); the error names the file whose values take up the most.

If a compressed file of a slice turns out to be damaged, the slice is routed again, without the damaged stream and
everything that follows it in the file. No exchange run is committed before the streams that its rows come from have
been decoded to the end.

Cost per MB of text: 1 to 2 ms for reading, 1 ms for the rules and the hash, 2 ms for writing. Memory: one chunk plus
the exchange writer's budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from pyarrow import types

from datakit.engine.disk_limits import WriteLimit
from datakit.engine.exchange.exchange import ExchangeWriter
from datakit.engine.quarantine import SHOWN
from datakit.engine.task import TaskContext, TaskResult
from datakit.errors import ColumnError
from datakit.normalize import formats
from datakit.normalize.columns.conflicts import with_policies
from datakit.normalize.columns.paths_in_types import mistake
from datakit.normalize.columns.schema_union import fit_column
from datakit.normalize.columns.upstream_columns import UpstreamColumns
from datakit.normalize.config import Config
from datakit.normalize.origins import FileCounts
from datakit.normalize.phase_data import RouteArguments, RouteDetails, RouteShared, to_plain
from datakit.normalize.readers.base import Chunk, ReadContext, with_splits, without_columns
from datakit.normalize.readers.slices import SLICE_BYTES, begun, despite_damage, read_slice
from datakit.normalize.readers.streams import Streams
from datakit.normalize.record_counts import IN, PREFIX, RecordCounts
from datakit.normalize.refusals import with_all_refusals
from datakit.normalize.settings.column_settings import KIND_MARK
from datakit.normalize.settings.text_forms import TextForm
from datakit.normalize.text_rules import apply_rules, valid_strings
from datakit.normalize.texts.render import texts_of
from datakit.normalize.transform import Transform
from datakit.normalize.where.predicate import Predicate
from datakit.printable import one_line
from datakit.storage.fingerprint import config_of
from datakit.storage.ids import ids_from_digests, top_bits
from datakit.storage.row_size import row_sizes, value_bytes
from datakit.text.hash_mixing import GOLDEN, mix
from datakit.text.string_buffers import string_buffers

PHASE = "route"
HIGH, LOW, TEXT, FILE, POSITION = "high", "low", "text", "file", "position"  # datakit's own columns in the exchange
UPSTREAM = "."  # prefix for the names of upstream columns in the exchange
ROW_BYTES = 20  # size of a row's file, position and text offset in the exchange
BUDGET_BYTES = 256 << 20  # memory for the exchange writer; a slice with 64 MiB of text usually fits in one exchange run
GIANT_BYTES = 16 << 20  # larger documents are reported, because they can make their partitions much larger
WHOLE_SLICE_BYTES = SLICE_BYTES // 2  # a task gives up at the end of its slice only if the slice is at least this large

Texts: TypeAlias = "pa.LargeStringArray | pa.LargeBinaryArray"


class Router:
    """Routes the chunks of one slice, in order.

    value_bytes: the size in bytes of all values routed so far. files: the counts of records and documents, by file.
    giants: the size in bytes of each document over GIANT_BYTES with its upstream columns, by id. documents: the number
    of documents routed so far. values: the number of values in each column that holds values of one kind.
    limit: see `TaskContext.write_limit`.
    """

    def __init__(
        self,
        own: RouteArguments,
        common: RouteShared,
        config: Config,
        counts: RecordCounts,
        limit: WriteLimit | None = None,
    ) -> None:
        self._config, self._counts, self._buckets = config, counts, common.buckets
        self._limit, self._bytes_of, self._key = limit, Counter[str](), own.key
        self._where = Predicate(config.where, common.where_types) if config.where else None
        self._transform = Transform(config.transform) if config.transform else None
        self.columns: UpstreamColumns = UpstreamColumns(config)
        self.files: FileCounts = FileCounts((part.path for part in own.ranges), own.first_file)
        self.value_bytes: int = 0
        self.giants: dict[tuple[int, int], int] = {}
        self.documents: int = 0
        self.values: Counter[str] = Counter()
        self._most, self._splits = own.most, own.splits

    def route(self, chunk: Chunk, write: Callable[[pa.Table, np.ndarray], None]) -> None:
        """Pass the documents of one chunk and the bucket of each to `write`. Raises InputError or PartialError; the
        former is an ExpansionError if the slice's values exceed the limit.
        """
        self.files.add_records(chunk)
        records = self._transformed(with_splits(chunk, self._splits))
        records = replace(records, table=with_policies(records.table, self._config.conflicts))
        self.columns.add(records.file, records.table)
        records, texts = self._texts(records)
        if self._where is not None:
            kept = self._where.matches(self._seen_by_where(records.table, texts), records.file)
            self._count(where_dropped=len(kept) - int(kept.sum()))
            records, texts = records.filter(kept), texts.filter(pa.array(kept))
        records, texts = self._apply_rules(records, texts)
        high, low = hash_texts(texts)
        if self._config.sample < 1:
            kept = sampled(low, self._config)
            self._count(sample_dropped=len(kept) - int(kept.sum()))
            records, texts, high, low = records.filter(kept), texts.filter(pa.array(kept)), high[kept], low[kept]
        if self._most is not None:
            kept = np.arange(len(low)) < self._most - self.documents
            self._count(limit_dropped=len(kept) - int(kept.sum()))
            records, texts, high, low = records.filter(kept), texts.filter(pa.array(kept)), high[kept], low[kept]
        self.documents += len(low)
        files, positions = self.files.origins(records)
        self.files.add_documents(files, np.diff(string_buffers(texts)[1]))
        ours = {HIGH: high, LOW: low, TEXT: texts, FILE: files, POSITION: positions}
        rows = _exchange_rows(ours, records.table, self.columns.union)
        self._count_kinds(rows)
        values = rows.drop_columns([FILE, POSITION])
        size = value_bytes(values)
        self.value_bytes += size
        if size > GIANT_BYTES:
            self._note_giants(high, low, row_sizes(values))
        self._check_expansion(records, values, size)
        write(rows, top_bits(high, self._buckets))

    def _count_kinds(self, rows: pa.Table) -> None:
        """Count the values in the columns that hold values of one kind (see columns/conflicts.py)."""
        for name in rows.column_names if self._config.conflicts else ():
            if KIND_MARK in name:
                column = rows.column(name)
                self.values[name.removeprefix(UPSTREAM)] += len(column) - column.null_count

    def _note_giants(self, high: np.ndarray, low: np.ndarray, sizes: np.ndarray) -> None:
        """Note the largest size of each giant document: its copies may have other columns, and any of them is kept."""
        for row in np.flatnonzero(sizes > GIANT_BYTES).tolist():
            identity = int(high[row]), int(low[row])
            self.giants[identity] = max(self.giants.get(identity, 0), int(sizes[row]))

    def _check_expansion(self, records: Chunk, values: pa.Table, size: int) -> None:
        """Add the size of each row of `values` to the total of the row's file. size: the size of `values` in bytes.
        Raises ExpansionError if the slice exceeds the limit; the error names the file with the highest total.
        """
        if records.files:
            for file, one in zip(records.files, row_sizes(values).tolist(), strict=True):
                self._bytes_of[file] += one + ROW_BYTES
        else:
            self._bytes_of[records.file] += size + ROW_BYTES * values.num_rows
        total = self._bytes_of.total()
        if self._limit is not None and total > self._limit.bytes:
            ((file, _),) = self._bytes_of.most_common(1)
            raise self._limit.error(total, one_line(file), f"task {self._key} of phase {PHASE}")

    def _seen_by_where(self, table: pa.Table, texts: Texts) -> pa.Table:
        """Return the table; if `where` reads the text column, its values are converted to valid strings."""
        name = self._config.text_name
        if self._where is None or name not in self._where.columns:
            return table
        return without_columns(table, [name]).append_column(name, valid_strings(texts))

    def _transformed(self, chunk: Chunk) -> Chunk:
        """Apply the transform. If this changes the number of rows, all rows get the chunk's first file and position."""
        if self._transform is None:
            return chunk
        table = self._transform.apply(chunk.table)
        change = table.num_rows - chunk.table.num_rows
        self._count(transform_added=max(0, change), transform_dropped=max(0, -change))
        if not change:
            return replace(chunk, table=table, valid_texts=False)
        positions, files = np.full(table.num_rows, chunk.positions[0]), chunk.files[:1] * table.num_rows
        return replace(chunk, table=table, positions=positions, files=files, traced=False, valid_texts=False)

    def _texts(self, rows: Chunk) -> tuple[Chunk, Texts]:
        """Return the rows with usable or missing texts, and their texts. A null stands for a missing text."""
        if self._config.text_form is not None:
            return self._made_texts(rows, self._config.text_form)
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

    def _made_texts(self, rows: Chunk, form: TextForm) -> tuple[Chunk, Texts]:
        """Return the rows whose texts are not too long, and these texts. Raises ColumnError for columns of which no
        text can be made; JSON records with such values have already been quarantined.
        """
        reason = mistake(rows.table.schema, form)
        if reason is not None:
            raise ColumnError(
                f"{one_line(rows.file)}: {reason}; change the source's `text`, or convert the column with a transform"
            )
        limit = self._config.max_document_bytes
        texts, long = texts_of(rows.table, form, limit)
        if not long.any():
            return self._short_enough(rows, texts)
        for file, position in rows.filter(long).places():
            self._counts.unusable(file, position, f"longer than max_document_bytes ({limit})")
        return self._short_enough(rows.filter(~long), texts.filter(pa.array(~long)))

    def _without_wrong_types(self, rows: Chunk, kind: pa.DataType) -> Chunk:
        """Quarantine JSON records whose text is not a string, and return the other rows. Raises ColumnError if the file
        has another format or a transform was applied.
        """
        if self._transform is not None or formats.format_of(rows.file, self._config.format) not in formats.OF_JSON:
            raise ColumnError(
                f"{one_line(rows.file)}: column {self._config.text!r} is {kind}, not text; set the source's "
                "`text` to another "
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
        for file, position in rows.filter(~kept).places():
            self._counts.unusable(file, position, f"longer than max_document_bytes ({limit})")
        return rows.filter(kept), texts.filter(pa.array(kept))

    def _apply_rules(self, rows: Chunk, texts: Texts) -> tuple[Chunk, pa.LargeStringArray]:
        missing, ruled = texts.null_count, apply_rules(texts, self._config.whitespace_run, rows.valid_texts)
        self._count(missing=missing, blank=ruled.blank - missing, invalid_utf8=ruled.invalid_utf8, nul=ruled.nul)
        self._count(whitespace_runs=ruled.whitespace_runs)
        if not ruled.blank:
            return rows, ruled.texts
        return rows.filter(ruled.kept), ruled.texts.filter(pa.array(ruled.kept))

    def _count(self, **counts: int) -> None:
        for name, count in counts.items():
            self._counts.counters[PREFIX + name] += count


def _json_kind(kind: pa.DataType) -> str:
    if types.is_struct(kind):
        return "an object"
    if types.is_list(kind):
        return "an array"
    return "a literal" if types.is_boolean(kind) else "a number"


def sampled(low: np.ndarray, config: Config) -> np.ndarray:
    """Return bool [documents], True for the documents in the sample. low: uint64, the lower halves of the ids.

    Partitions are selected by the high bits, so the low bits sample every partition equally. A seed is mixed into the
    bits; without one, they are used as they are.
    """
    if config.sample == 1:
        return np.ones(len(low), bool)
    if config.sample_seed is not None:
        low = mix(low ^ mix(np.array([config.sample_seed + 1], np.uint64) * GOLDEN))
    return low < np.uint64(int(config.sample * 2.0**64))


def hash_texts(texts: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the xxh3-128 hash of each text's bytes as two arrays (high, low), uint64 [texts] each."""
    data, offsets = string_buffers(texts)
    view, ends = data.data, offsets.tolist()
    # with `map` over slices of one buffer, the loop runs in C
    digests = map(xxhash.xxh3_128_digest, map(view.__getitem__, map(slice, ends[:-1], ends[1:])))
    return ids_from_digests(b"".join(digests))


def _exchange_rows(ours: dict[str, Any], table: pa.Table, union: pa.Schema) -> pa.Table:
    have = set(table.column_names)
    others = [
        fit_column(table.column(field.name), field.type) if field.name in have else pa.nulls(len(table), field.type)
        for field in union
    ]
    names = [*ours, *(UPSTREAM + name for name in union.names)]
    return pa.table([*map(pa.array, ours.values()), *others], names=names)


def route_slice(arguments: dict[str, Any], shared: dict[str, Any], task: TaskContext) -> TaskResult:
    """Route one slice. Raises PartialError, or an InputError that names all of the slice's refused files."""
    own, common = msgspec.convert(arguments, RouteArguments), msgspec.convert(shared, RouteShared)
    config = config_of(common.config, Config)
    context = ReadContext(own.inputs(common.base), config, RecordCounts(task.tolerance), task)

    def work() -> TaskResult:
        return despite_damage(context, own.ranges, lambda streams: _route(own, common, config, task, streams))

    def check(context: ReadContext, part: RouteArguments) -> UpstreamColumns:
        router = Router(part, common, config, context.counts, task.write_limit)
        for chunk in read_slice(context, part.ranges):
            router.route(chunk, lambda *rows: None)
            context.task.report(context.counts.counters[IN], 0)
        router.columns.check_text(begun(part.ranges), context.choice.unread)
        return router.columns

    return with_all_refusals(work, context, own, check)


def _route(own: RouteArguments, common: RouteShared, config: Config, task: TaskContext, streams: Streams) -> TaskResult:
    inputs, counts = own.inputs(common.base), RecordCounts(task.tolerance)
    context = ReadContext(inputs, config, counts, replace(task, hold=_hold_or_give_up(counts, task)), streams)
    router, bytes_read = Router(own, common, config, counts, task.write_limit), 0
    with ExchangeWriter(
        task, PHASE, own.key, common.buckets, BUDGET_BYTES, before_commit=inputs.check, input_state=streams
    ) as writer:
        for chunk in read_slice(context, own.ranges):
            router.route(without_skipped(chunk, context, own, common), writer.write)
            bytes_read += chunk.bytes_read
            task.report(counts.counters[IN], bytes_read)
            task.release()
    if sum(part.weight for part in own.ranges) >= WHOLE_SLICE_BYTES:
        counts.give_up_if_hopeless(SHOWN)
    columns = router.columns
    columns.check_text(begun(own.ranges), context.choice.unread)
    large, heavy = list(columns.largest.items()), sorted(writer.heavy.items())
    found = RouteDetails(
        writer.runs, columns.schemas(), large, columns.documents, router.value_bytes, heavy,
        router.files.counts.tolist(), [(*identity, size) for identity, size in router.giants.items()],
        columns.absent(), columns.names(context.choice.unread), dict(router.values),
    )  # fmt: skip
    records, quarantined = counts.counters[IN], tuple(counts.quarantined)
    return TaskResult(writer.outputs, dict(counts.counters), to_plain(found), quarantined, records, bytes_read)


def _hold_or_give_up(counts: RecordCounts, task: TaskContext) -> Callable[[str, int, int], None]:
    """Return the function that readers call as `hold`. It fails the task if nearly all records so far are unusable;
    otherwise it calls `task.hold`.

    Readers call `hold` at the start of each chunk, when all earlier chunks are fully counted. Checking only at the end
    of the slice would be too late: a compressed file is never cut, so its slice may hold many GB of bad records.
    """

    def hold(file: str, position: int, records: int) -> None:
        counts.give_up_if_hopeless()
        task.hold(file, position, records)

    return hold


def without_skipped(chunk: Chunk, context: ReadContext, own: RouteArguments, common: RouteShared) -> Chunk:
    """Announce the chunk (see TaskContext.records); return it without the records that have to be quarantined."""

    def try_record(row: int) -> None:
        counts = context.for_trial().counts
        router = Router(own, common, context.config, counts)
        router.route(chunk.single(row), lambda *rows: None)

    kept, left_out = context.task.records(chunk.record_files, chunk.positions, try_record)
    for record in left_out:
        context.counts.unusable(record.file, record.position, record.reason)
    return chunk if kept is None else chunk.filter(kept)
