"""The first half of normalize: a slice's records become documents with ids, and go to where their ids belong.

Per block, in columns: the transform, the predicate, the text column, the text rules, the hash, the sample; then rows
go to the bucket of their id's top bits. A row carries its id as two integers, its text, and every upstream column under
its own name, as it is here; only when all slices are done is it known what the others have.

Cost per MB of text: 1 to 2 ms to read, 1 ms for rules and hash, 2 ms to write; memory is one block and the exchange
writer's budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import xxhash
from pyarrow import types

from datakit.engine.exchange.exchange import ExchangeWriter
from datakit.engine.quarantine import SHOWN
from datakit.engine.task import TaskContext, TaskResult
from datakit.errors import ColumnError, suggestion
from datakit.normalize import formats
from datakit.normalize.config import Config
from datakit.normalize.predicate import Predicate, Transform
from datakit.normalize.readers.base import Block, Reading
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.slices import SLICE_BYTES, Piece, read_slice
from datakit.normalize.record_counts import Findings
from datakit.normalize.schema_union import fit, is_bytes, unite
from datakit.normalize.text_rules import apply_rules
from datakit.storage.fingerprint import config_of
from datakit.storage.ids import ids_from_digests
from datakit.text.string_buffers import string_buffers

PHASE = "route"
HIGH, LOW, TEXT = "high", "low", "text"  # our columns in the exchange; upstream columns have a prefix
UPSTREAM = "."
BUDGET_BYTES = 256 << 20
WHOLE_SLICE_BYTES = SLICE_BYTES // 2  # a source whose slices are smaller is read in no time


class Sink(Protocol):
    """Where routed rows go: an ExchangeWriter, or nowhere."""

    def write(self, table: pa.Table, bucket: np.ndarray) -> None:
        """Append rows."""
        ...


class _Nowhere:
    def write(self, table: pa.Table, bucket: np.ndarray) -> None:
        """For rows that are only tried."""


class Router:
    """Takes the blocks of one slice, in order."""

    def __init__(self, config: Config, findings: Findings, buckets: int) -> None:
        self._config, self._findings = config, findings
        self._shift = np.uint64(64 - buckets.bit_length() + 1)
        self._where = Predicate(config.where) if config.where else None
        self._transform = Transform(config.transform) if config.transform else None
        self._union = pa.schema([])  # of the slice so far: rows are made to fit it, so that most runs are long
        self._seen: dict[str, pa.Schema] = {}
        self._with_text: set[str] = set()
        self.text_bytes = 0

    def route(self, block: Block, writer: Sink) -> None:
        """One block's documents into the exchange."""
        table, positions = self._transformed(block)
        self._note(block.file, table.schema)
        if self._where is not None:
            table, positions = self._filtered(block.file, table, positions)
        table, positions, texts = self._texts(block.file, table, positions)
        ruled = apply_rules(texts, self._config.whitespace_run)
        self._count(blank=ruled.blank, invalid_utf8=ruled.invalid_utf8, nul=ruled.nul)
        self._count(whitespace_runs=ruled.whitespace_runs)
        texts = ruled.texts
        if ruled.blank:
            kept = pa.array(ruled.kept)
            table, texts = table.filter(kept), texts.filter(kept)
        high, low = hash_texts(texts)
        table, texts, high, low = self._sampled(table, texts, high, low)
        writer.write(_rows(table, self._union, texts, high, low), self._buckets(high))
        self.text_bytes += int(np.diff(string_buffers(texts)[1]).sum())

    def schemas(self) -> list[list[Any]]:
        """For the plan: [file, serialized schema] of the first file, and of each that adds to those before it."""
        union, result = pa.schema([]), []
        for file, schema in self._seen.items():
            wider = unite([("", union), (file, schema)])
            if wider != union:
                result.append([file, schema.serialize().to_pybytes().hex()])  # the ledger is JSON, which has no bytes
            union = wider
        return result

    def check_text(self) -> None:
        """Raises ColumnError for a file that never had the text column."""
        for file, schema in self._seen.items():
            if file not in self._with_text:
                near = suggestion(self._config.text, schema.names)
                names = ", ".join(name[:60] for name in schema.names[:20]) + (", ..." if len(schema.names) > 20 else "")
                raise ColumnError(
                    f"{file} has no column {self._config.text!r}; it has {names or 'none'}"
                    f"{' (' + near + ')' if near.startswith('did') else ''}; set the source's text to the column "
                    "that holds the text"
                )

    def _note(self, file: str, schema: pa.Schema) -> None:
        """Widen what is known of the columns; the text has rules of its own, and an id is always a string."""
        if self._config.text in schema.names:
            self._with_text.add(file)
        others = pa.schema([self._noted(file, field) for field in schema if field.name != self._config.text])
        known = self._seen.get(file)
        self._seen[file] = unite([(file, known), (file, others)]) if known is not None else others
        self._union = unite([(next(iter(self._seen)), self._union), (file, others)])

    def _noted(self, file: str, field: pa.Field) -> pa.Field:
        if field.name != self._config.id:
            return field.remove_metadata()
        if types.is_nested(field.type) or is_bytes(field.type):
            raise ColumnError(
                f"{file}: column {field.name!r} is {field.type}, which makes no id; set the source's id to another "
                'column, or to "" for none'
            )
        return pa.field(field.name, pa.string())

    def _transformed(self, block: Block) -> tuple[pa.Table, np.ndarray]:
        if self._transform is None:
            return block.table, block.positions
        table = self._transform.apply(block.table)
        change = table.num_rows - block.table.num_rows
        self._count(transform_added=max(0, change), transform_dropped=max(0, -change))
        return table, block.positions if change == 0 else np.full(table.num_rows, block.positions[0])

    def _filtered(self, file: str, table: pa.Table, positions: np.ndarray) -> tuple[pa.Table, np.ndarray]:
        assert self._where is not None
        kept = self._where.matches(table, file)
        self._count(where_dropped=len(kept) - int(kept.sum()))
        return table.filter(pa.array(kept)), positions[kept]

    def _texts(
        self, file: str, table: pa.Table, positions: np.ndarray
    ) -> tuple[pa.Table, np.ndarray, pa.LargeStringArray | pa.LargeBinaryArray]:
        """The text column, and the records that have a usable one (a null is a blank text, which comes later)."""
        if self._config.text not in table.column_names:
            return table, positions, pa.nulls(table.num_rows, pa.large_string())
        column = table.column(self._config.text)
        kind = column.type
        if not (types.is_null(kind) or _is_text(kind)):
            table, positions, column = self._refuse_type(file, table, positions, column)
        column = pa.nulls(len(column), pa.large_string()) if types.is_null(column.type) else column
        wide = pa.large_binary() if types.is_binary(kind) or types.is_large_binary(kind) else pa.large_string()
        chunks = [fit(chunk, wide) for chunk in (column.chunks if isinstance(column, pa.ChunkedArray) else [column])]
        texts = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else pa.array([], wide)
        return self._short_enough(file, table, positions, texts)

    def _refuse_type(
        self, file: str, table: pa.Table, positions: np.ndarray, column: pa.ChunkedArray
    ) -> tuple[pa.Table, np.ndarray, pa.Array]:
        """In a file with a schema a text column that is no text is an error; in JSON it is so record by record."""
        if self._transform is not None or formats.format_of(file, self._config.format) != formats.JSON:
            raise ColumnError(
                f"{file}: column {self._config.text!r} is {column.type}, not text; set the source's text to another "
                "column, or make a string of it with a transform"
            )
        valued = column.is_valid().to_numpy()
        for position in positions[valued].tolist():
            self._findings.refused(file, position, f"{self._config.text!r} is {_json_kind(column.type)}, not a string")
        kept = ~valued
        return table.filter(pa.array(kept)), positions[kept], pa.nulls(int(kept.sum()), pa.large_string())

    def _short_enough(
        self, file: str, table: pa.Table, positions: np.ndarray, texts: pa.LargeStringArray | pa.LargeBinaryArray
    ) -> tuple[pa.Table, np.ndarray, pa.LargeStringArray | pa.LargeBinaryArray]:
        limit = self._config.max_document_bytes
        kept = np.diff(string_buffers(texts)[1]) <= limit
        if kept.all():
            return table, positions, texts
        for position in positions[~kept].tolist():
            self._findings.refused(file, position, f"longer than max_document_bytes ({limit})")
        mask = pa.array(kept)
        return table.filter(mask), positions[kept], texts.filter(mask)

    def _sampled(
        self, table: pa.Table, texts: pa.LargeStringArray, high: np.ndarray, low: np.ndarray
    ) -> tuple[pa.Table, pa.LargeStringArray, np.ndarray, np.ndarray]:
        if self._config.sample >= 1:
            return table, texts, high, low
        kept = high < np.uint64(int(self._config.sample * 2.0**64))
        self._count(sample_dropped=len(kept) - int(kept.sum()))
        mask = pa.array(kept)
        return table.filter(mask), texts.filter(mask), high[kept], low[kept]

    def _buckets(self, high: np.ndarray) -> np.ndarray:
        return (high >> self._shift).astype(np.int64) if self._shift < 64 else np.zeros(len(high), np.int64)

    def _count(self, **counts: int) -> None:
        for name, count in counts.items():
            self._findings.counters[f"normalize/{name}"] += count


def _is_text(kind: pa.DataType) -> bool:
    return (
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )  # fmt: skip


def _json_kind(kind: pa.DataType) -> str:
    if types.is_struct(kind):
        return "an object"
    if types.is_list(kind):
        return "an array"
    return "a literal" if types.is_boolean(kind) else "a number"


def hash_texts(texts: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """(high, low) of the xxh3-128 of each text's bytes. The loop runs in C: `map` over slices of one buffer."""
    data, offsets = string_buffers(texts)
    view, places = data.data, offsets.tolist()
    digests = map(xxhash.xxh3_128_digest, map(view.__getitem__, map(slice, places[:-1], places[1:])))
    return ids_from_digests(b"".join(digests))


def _rows(table: pa.Table, union: pa.Schema, texts: pa.Array, high: np.ndarray, low: np.ndarray) -> pa.Table:
    have = set(table.column_names)
    others = [
        _fitted(table.column(field.name), field.type) if field.name in have else pa.nulls(len(texts), field.type)
        for field in union
    ]
    names = [HIGH, LOW, TEXT, *(UPSTREAM + name for name in union.names)]
    return pa.table([pa.array(high), pa.array(low), texts, *others], names=names)


def _fitted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([fit(chunk, kind) for chunk in column.chunks], kind)


def route_slice(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """The task: see the module."""
    config = config_of(shared["config"], Config)
    findings = Findings(context.tolerance)
    context = replace(context, hold=_after_giving_up(findings, context))
    router = Router(config, findings, shared["buckets"])
    inputs = Inputs(shared["base"], arguments.get("listed", {}))
    reading = Reading(inputs, config, findings, context)
    pieces = [Piece(**piece) for piece in arguments["pieces"]]
    bytes_read = 0
    place = (context, PHASE, arguments["key"], shared["buckets"])
    with ExchangeWriter(*place, BUDGET_BYTES, before_commit=inputs.check) as writer:
        for block in read_slice(reading, pieces):
            router.route(_in_hand(block, reading, shared["buckets"]), writer)
            bytes_read += block.bytes_read
            context.report(findings.counters["normalize/records_in"], bytes_read)
            context.release()
    if sum(piece.weight for piece in pieces) >= WHOLE_SLICE_BYTES:
        findings.give_up(SHOWN)
    router.check_text()
    details = {"runs": writer.runs, "schemas": router.schemas(), "text_bytes": router.text_bytes}
    return TaskResult(
        writer.outputs,
        dict(findings.counters),
        details,
        tuple(findings.left_out),
        records=findings.counters["normalize/records_in"],
        bytes_read=bytes_read,
    )


def _after_giving_up(findings: Findings, context: TaskContext) -> Callable[[str, int, int], None]:
    """The context's `hold`, which readers call when a block begins: only then those before it are counted as a whole.

    A compressed stream may be one slice of many GB, all of it bad: the end of the slice would be too late.
    """

    def hold(file: str, position: int, records: int) -> None:
        findings.give_up()
        context.hold(file, position, records)

    return hold


def _in_hand(block: Block, reading: Reading, buckets: int) -> Block:
    """The block, without records that are to be left out; see TaskContext.records."""

    def alone(row: int) -> None:
        Router(reading.config, reading.for_nothing().findings, buckets).route(block.one(row), _Nowhere())

    kept, left_out = reading.context.records(block.places, block.positions, alone)
    for record in left_out:
        reading.findings.refused(record.file, record.position, record.reason)
    return block if kept is None else block.only(kept)
