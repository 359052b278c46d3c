"""Reads web archives: WARC and WET files, and ARC files. A record that becomes a document (messages.py) is one row with
the columns in columns.py.

A batch of records is announced to the engine before it is decoded and extracted. A record that kills the process
(because its extractor crashes, hangs or eats memory) is therefore found like any other, and left out alone. Records
that cannot become documents by their type are not announced.

Cost: 3 to 4 ms per MB of content without extraction; Resiliparse takes about 30 ms per MB of HTML, and trafilatura
almost twenty times as much. Memory: a batch of records, and the longest permitted record several times over.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from datakit.normalize.config import NO_EXTRACTION
from datakit.normalize.readers.base import Chunk, Chunks, ReadContext, without_columns
from datakit.normalize.readers.line_chunks import CHUNK_BYTES
from datakit.normalize.readers.web.charsets import UTF_8, charset_of, is_utf8, mark_of, text_of
from datakit.normalize.readers.web.columns import COLUMNS
from datakit.normalize.readers.web.errors import BrokenRecordError, LeftOutError
from datakit.normalize.readers.web.extractors import Extract, cpu_limit, extracted, extractor
from datakit.normalize.readers.web.messages import HTML_TYPES, Page, may_be_document, page_of
from datakit.normalize.readers.web.payloads import decoded
from datakit.normalize.readers.web.pieces import View
from datakit.normalize.readers.web.records import Broken, Record, records_of
from datakit.normalize.record_counts import OTHER_RECORD_TYPE

BATCH_RECORDS = 256  # a record that kills its process is searched for in its batch


@dataclass(frozen=True)
class Row:
    """A page that becomes a document. replaced: True if some of its bytes were invalid in its charset."""

    page: Page
    text: View | None
    charset: str
    replaced: bool


def read_web(
    context: ReadContext, path: str, kind: str, *, start: int = 0, stop: int | None = None, origin: int = 0
) -> Chunks:
    """Yield the documents of an archive whose records begin in bytes [start, stop) of the stored file, at which records
    begin. kind: WARC or ARC. origin: the offset of byte `start` in the uncompressed file. Raises UnreadableError.
    """
    batches = _Batches(context, path, kind)
    for found in records_of(context, path, kind, start=start, stop=stop, origin=origin):
        if isinstance(found, Broken):
            yield from batches.finish()
            context.counts.unreadable(path, found.position, _with_place(found.reason, found))
        elif not may_be_document(found, kind):
            context.counts.not_page(OTHER_RECORD_TYPE)
        else:
            yield from batches.add(found)
    yield from batches.finish()


class _Batches:
    """Collects the records of one archive into batches, and makes chunks of them."""

    def __init__(self, context: ReadContext, path: str, kind: str) -> None:
        self._context, self._path, self._kind = context, path, kind
        self._records: list[Record] = []
        self._size = 0
        self._extract: Extract = extractor(context.config.extract)
        self._keeps_html = context.config.extract == NO_EXTRACTION
        # outside a task, as in `datakit inspect`, the signal would end the user's process
        in_task = bool(context.task.step_directory) and not self._keeps_html
        self._seconds = context.config.extract_seconds if in_task else 0

    def add(self, record: Record) -> Chunks:
        """Add a record, and yield the chunk of the batch if it is full."""
        self._records.append(record)
        self._size += len(record.block)
        if self._size >= CHUNK_BYTES or len(self._records) >= BATCH_RECORDS:
            yield from self.finish()

    def finish(self) -> Chunks:
        """Yield the chunk of the records so far, if any of them becomes a document."""
        records, size = self._records, self._size
        self._records, self._size = [], 0
        if not records:
            return
        positions = np.array([record.position for record in records], np.int64)
        kept = self._context.start_batch(self._path, positions, lambda row: self._tried(records[row]))
        numbers = range(len(records)) if kept is None else np.flatnonzero(kept).tolist()
        rows = {number: row for number in numbers if (row := self._counted(records[number])) is not None}
        if not rows:
            self._context.task.release()
            return
        self._context.counts.add_read(len(rows))
        table = self._table([records[number] for number in rows], list(rows.values()))
        yield Chunk(self._path, table, positions[list(rows)], size)

    def _tried(self, record: Record) -> None:
        """Do the work on one record, and discard the result."""
        with suppress(LeftOutError, BrokenRecordError):
            self._row(record)

    def _counted(self, record: Record) -> Row | None:
        """Return the row of a record, or count the record under the reason for which it has none."""
        counts = self._context.counts
        try:
            row = self._row(record)
        except LeftOutError as error:
            counts.not_page(error.counter)
            return None
        except BrokenRecordError as error:
            counts.unreadable(self._path, record.position, _with_place(str(error), record))
            return None
        counts.counters["normalize/invalid_utf8"] += row.replaced
        return row

    def _row(self, record: Record) -> Row:
        with cpu_limit(self._seconds) if self._seconds else nullcontext():
            page, limit = page_of(record, self._kind), self._context.config.max_document_bytes
            if not record.whole:
                raise BrokenRecordError(f"longer than max_document_bytes ({limit})")
            payload = decoded(page.payload, page.encodings, limit)
            is_html = page.media_type in HTML_TYPES
            charset = UTF_8 if page.kind == "conversion" else charset_of(payload, page.charset, is_html)
            if (not is_html or self._keeps_html) and charset == UTF_8 and not mark_of(payload) and is_utf8(payload):
                return Row(page, payload, charset, False)  # as below, without decoding and encoding
            text, replaced = text_of(payload, charset)
            text = extracted(self._extract, text) if is_html else text
            return Row(page, None if text is None else text.encode("utf-8", "replace"), charset, replaced)

    def _table(self, records: list[Record], rows: list[Row]) -> pa.Table:
        config, pages = self._context.config, [row.page for row in rows]
        values: dict[str, Callable[[], list[Any]]] = {
            name: lambda name=name: [getattr(page, name) for page in pages]
            for name in ("url", "date", "media_type", "language", "status", "truncated")
        }
        values |= {"charset": lambda: [row.charset for row in rows], "offset": lambda: [one.stored for one in records]}
        columns = {field.name: _column(values[field.name](), field.type) for field in COLUMNS}
        if config.id not in columns:
            columns = {config.id or "id": _column([page.record_id for page in pages], pa.string()), **columns}
        texts = _texts([row.text for row in rows])
        table, text = self._context.choice.read_columns(pa.table(columns)), config.text_column or "text"
        return without_columns(table, [text]).append_column(text, texts)


def _with_place(reason: str, found: Record | Broken) -> str:
    """Add the record's place in the stored file to the reason for its quarantine, if it is not its position."""
    if found.stored == found.position or "stored file" in reason:
        return reason
    return f"{reason} (at byte {found.stored} of the stored file)"


def _texts(texts: list[View | None]) -> pa.Array:
    """Return texts as a column. Without nulls, joining takes a third of the time of Arrow's conversion, whose buffer
    grows step by step.
    """
    known = [text for text in texts if text is not None]
    if len(known) < len(texts):
        return pa.array([None if text is None else bytes(text) for text in texts], pa.large_binary())
    ends = np.cumsum([0, *map(len, known)], dtype=np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(known))]
    return pa.Array.from_buffers(pa.large_binary(), len(known), buffers)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values as a column. Surrogates, which no Arrow string may hold, are replaced."""
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        valid = [value.encode("utf-8", "replace").decode() if isinstance(value, str) else value for value in values]
        return pa.array(valid, kind)
