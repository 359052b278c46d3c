"""Reads CSV and TSV files: finds the header, and quarantines records that are too long or have the wrong number of
fields or misplaced quotes. By default, the fields of CSV files may be quoted as in RFC 4180, and those of TSV files are
never quoted, as in IANA's definition of TSV; `quoting` overrides this. A quote that is never closed would silently turn
the rest of the file into one field. Therefore a quoted field that exceeds `max_field_bytes` or `max_field_lines`, or
that is still open at the end of the file, is an error: the field's record and the rest of the file are lost, and are
quarantined as one entry. A record in which text follows a closing quote is quarantined up to the end of the line. A
record that is longer than `max_document_bytes` is quarantined; its fields are dropped as they are read.

Every column has the type string, because the format has no types, and guessed types would differ between chunks.
csv_records.py cuts the file into chunks of whole records at known offsets; pyarrow then parses the chunks. A
quarantined record is listed with its offset. Speed: about 300 MB/s per core.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from datakit.errors import UnreadableError
from datakit.normalize.config import QUOTED, UNQUOTED, Config
from datakit.normalize.formats import AUTO, CSV
from datakit.normalize.readers.base import (
    Chunk,
    Chunks,
    ReadContext,
    longest_record,
    require_unique_columns,
)
from datakit.normalize.readers.csv_records import Dialect, RecordCutter, Records
from datakit.normalize.readers.json import valid_utf8
from datakit.normalize.readers.line_chunks import BYTE_ORDER_MARK
from datakit.normalize.readers.sound_arrays import check_arrays
from datakit.normalize.readers.streams import DamagedError, decompressed
from datakit.normalize.readers.valid_strings import with_valid_strings
from datakit.printable import one_line


def read_csv(context: ReadContext, path: str, format: str) -> Chunks:
    """Yield a file's records in chunks. format: CSV or TSV. Raises ColumnError or UnreadableError."""
    dialect = dialect_of(format, context.config)
    parser = _ChunkParser(path, dialect, context)
    cutter = RecordCutter(dialect, context.config, parser.too_long)
    with context.inputs.open(path) as file:
        parts = decompressed(file, path, streams=context.streams)
        try:
            for records in cutter.chunks(parts):
                yield from parser.parse(records)
        except DamagedError as error:
            for records in cutter.whole_records():
                yield from parser.parse(records)
            context.counts.unreadable(path, cutter.position, f"{error}; what follows is lost")
            _finish_stream(parts, context)


def _finish_stream(parts: Iterator[bytes], context: ReadContext) -> None:
    """Decode the rest of a stream whose beginning was used. Raises DamagedStreamError if the stream is corrupt."""
    with suppress(DamagedError):
        while context.streams.sound < context.streams.begun and next(parts, None) is not None:
            context.task.release()


def dialect_of(format: str, config: Config) -> Dialect:
    """Return the dialect of a format under a source's settings."""
    quoting = config.quoting if config.quoting != AUTO else QUOTED if format == CSV else UNQUOTED
    return Dialect("," if format == CSV else "\t", quoting == QUOTED)


def _header(record: bytes, dialect: Dialect, path: str) -> list[str]:
    text = record.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace").strip("\r\n")
    quoting = csv.QUOTE_MINIMAL if dialect.quoted else csv.QUOTE_NONE
    try:
        names = next(csv.reader([text], delimiter=dialect.delimiter, quoting=quoting), [])
    except csv.Error as error:
        reason = f"{one_line(path)} has a header that cannot be read ({error}); exclude the file"
        raise UnreadableError(reason) from error
    if not names:
        raise UnreadableError(
            f"{one_line(path)} has no header; its first record must name the columns, separated by "
            f"{dialect.delimiter!r}"
        )
    require_unique_columns(path, names)
    return names


class _ChunkParser:
    """Parses the chunks of one file."""

    def __init__(self, path: str, dialect: Dialect, context: ReadContext) -> None:
        self._path, self._dialect, self._context = path, dialect, context
        self._names: list[str] = []

    def parse(self, records: Records) -> Chunks:
        """Yield the records of a chunk, if it has any. The first record of the file is the header."""
        offset, data, starts, sound = records
        if len(starts) and not self._names:
            header = data[starts[0] : starts[1]] if len(starts) > 1 else data[starts[0] :]
            self._names = _header(header, self._dialect, self._path)
            starts, sound = starts[1:], sound[1:]
        short = np.diff(starts, append=len(data)) <= longest_record(self._context.config)
        for position in (offset + starts[~short]).tolist():
            self.too_long(position)
        for position in (offset + starts[short & ~sound]).tolist():
            self._context.counts.unreadable(self._path, position, "text follows a closing quote")
        sound = sound & short
        if sound.any():
            yield self._parse(len(data), *_selected(data, starts, offset + starts, sound))

    def too_long(self, position: int) -> None:
        """Quarantine the record at this offset. Raises UnreadableError if it is the header."""
        limit = longest_record(self._context.config)
        if not self._names:
            raise UnreadableError(f"the header of {self._path} exceeds max_document_bytes ({limit}); exclude the file")
        self._context.counts.unreadable(self._path, position, f"longer than max_document_bytes ({limit})")

    def _parse(self, size: int, data: bytes, starts: np.ndarray, positions: np.ndarray) -> Chunk:
        counts, config = self._context.counts, self._context.config
        kept = self._context.start_batch(self._path, positions, lambda row: self._try_record(data, starts, row))
        if kept is not None:
            data, starts, positions = _selected(data, starts, positions, kept)
        table, positions = self._read_table(data, starts, positions)
        counts.add_read(table.num_rows)
        table = self._context.choice.read_columns(table)
        strings = pa.table([_strings(column) for column in table.columns], names=table.column_names)
        return Chunk(self._path, with_valid_strings(self._path, strings, config.text_column, counts), positions, size)

    def _try_record(self, data: bytes, starts: np.ndarray, row: int) -> None:
        end = starts[row + 1] if row + 1 < len(starts) else len(data)
        _table(valid_utf8(data[starts[row] : end])[0], self._names, self._dialect, lambda _: "skip")

    def _read_table(self, data: bytes, starts: np.ndarray, positions: np.ndarray) -> tuple[pa.Table, np.ndarray]:
        """Return the well-formed records and their positions; quarantine the malformed ones."""
        wrong: dict[int, str] = {}

        def bad(row: Any) -> str:
            wrong[row.number - 1] = f"{row.actual_columns} fields instead of {row.expected_columns}"
            return "skip"

        good = np.ones(len(positions), bool)
        valid, invalid = valid_utf8(data)
        if invalid:
            # pyarrow cannot pass invalid UTF-8 to `bad`, so malformed records are found in a repaired copy and left out
            _table(valid, self._names, self._dialect, bad)
            good[list(wrong)] = False
            data = _selected(data, starts, positions, good)[0]
        table = _table(data, self._names, self._dialect, bad)
        good[list(wrong)] = False
        for row in sorted(wrong):
            self._context.counts.unreadable(self._path, int(positions[row]), wrong[row])
        check_arrays(table)
        if table.num_rows != good.sum():
            raise UnreadableError(
                f"{self._path}: from byte {positions[0]} on, it is unclear where records end; check the file's quotes"
            )
        return table, positions[good]


def _selected(
    data: bytes, starts: np.ndarray, positions: np.ndarray, kept: np.ndarray
) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Return the records selected by `kept` (bool [records]): their bytes, starts in these bytes, and positions."""
    ends = np.append(starts[1:], len(data))
    spans = zip(starts[kept].tolist(), ends[kept].tolist(), strict=True)
    new_starts = np.concatenate([[0], np.cumsum((ends - starts)[kept])])[:-1]
    return b"".join(data[start:end] for start, end in spans), new_starts, positions[kept]


def _table(data: bytes, names: list[str], dialect: Dialect, bad: Callable[[Any], str]) -> pa.Table:
    if not data:
        return pa.table({name: pa.array([], pa.binary()) for name in names})
    return pc.read_csv(
        pa.BufferReader(data),
        read_options=pc.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
        parse_options=pc.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char='"' if dialect.quoted else False,
            newlines_in_values=dialect.quoted,
            invalid_row_handler=bad,
        ),
        convert_options=pc.ConvertOptions(
            check_utf8=False, column_types=dict.fromkeys(names, pa.binary()), strings_can_be_null=False
        ),
    )


def _strings(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Reinterpret a binary column as strings, without validating the values."""
    return pa.chunked_array([chunk.view(pa.string()) for chunk in column.chunks], pa.string())
