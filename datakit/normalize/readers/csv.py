"""Reads CSV and TSV files: finds the header and the ends of records (quoted fields may contain line ends), and
quarantines records with the wrong number of fields. Every column is a string, because the format has no types, and
guessed types would differ between chunks. A compiled pass finds the ends of the records, so that chunks consist of
whole records at known offsets; pyarrow then parses the chunks. A quarantined record is listed with its offset. Speed:
about 300 MB/s per core.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from datakit.errors import UnreadableError
from datakit.normalize.readers.base import Chunk, Chunks, ReadContext, require_unique_columns, without_columns
from datakit.normalize.readers.json import BYTE_ORDER_MARK
from datakit.normalize.readers.line_chunks import CHUNK_BYTES
from datakit.normalize.readers.sound_arrays import check_arrays
from datakit.normalize.readers.streams import DamagedError, decompressed
from datakit.normalize.readers.valid_strings import with_valid_strings


class _Records(NamedTuple):
    """Whole records: their bytes `data`, the file offset of `data`, and the start of each record in `data` (int64)."""

    offset: int
    data: bytes
    starts: np.ndarray


def read_csv(context: ReadContext, path: str, delimiter: str) -> Chunks:
    """Yield the records of a file. Raises ColumnError or UnreadableError."""
    cutter = _RecordCutter(ord(delimiter), max(context.config.max_document_bytes, CHUNK_BYTES))
    parser = _ChunkParser(path, delimiter, context)
    with context.inputs.open(path) as file:
        try:
            for records in cutter.chunks(decompressed(file, path)):
                yield from parser.parse(records)
        except DamagedError as error:
            for records in cutter.whole_records():
                yield from parser.parse(records)
            context.counts.unreadable(path, cutter.position, f"{error}; what follows is lost")


class _RecordCutter:
    """Cuts a stream of bytes into chunks of whole records."""

    def __init__(self, delimiter: int, limit: int) -> None:
        self._delimiter, self._limit, self.position = delimiter, limit, 0
        self._buffer = bytearray()

    def chunks(self, parts: Iterator[bytes]) -> Iterator[_Records]:
        """Yield every chunk of the stream `parts`; the last record may lack a line end. Raises DamagedError."""
        wanted = CHUNK_BYTES
        for part in parts:
            self._buffer += part
            while len(self._buffer) >= wanted:
                cuts = list(self._cut(wanted))
                yield from cuts
                if not cuts and wanted > self._limit:
                    raise DamagedError(f"a record longer than max_document_bytes ({self._limit}), or an unclosed quote")
                wanted = CHUNK_BYTES if cuts else 2 * wanted
        if self._buffer:
            data = bytes(self._buffer)
            yield _Records(self.position, data, self._find_records(data)[0])

    def whole_records(self) -> Iterator[_Records]:
        """Yield the whole records that were still buffered when the stream broke off."""
        yield from self._cut(len(self._buffer))

    def _cut(self, length: int) -> Iterator[_Records]:
        data = bytes(memoryview(self._buffer)[:length])
        starts, end = self._find_records(data)
        if end:
            yield _Records(self.position, data[:end], starts[starts < end])
            del self._buffer[:end]
            self.position += end

    def _find_records(self, data: bytes) -> tuple[np.ndarray, int]:
        from datakit.normalize import kernels  # imported only here, because it imports numba, which only tasks need

        starts = np.zeros(data.count(b"\n") + data.count(b"\r") + 1, np.int64)
        count, end = kernels.find_records(np.frombuffer(data, np.uint8), self._delimiter, starts)
        return starts[:count], int(end)


def warm() -> None:
    """Compile the kernel, or load it from numba's cache on disk."""
    _RecordCutter(44, 1)._find_records(b"a,b\n")


def _header(record: bytes, delimiter: str, path: str) -> list[str]:
    text = record.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace").strip("\r\n")
    names = next(csv.reader([text], delimiter=delimiter), [])
    if not names:
        raise UnreadableError(
            f"{path} has no header; its first record must name the columns, with {delimiter!r} between the names"
        )
    require_unique_columns(path, names)
    return names


class _ChunkParser:
    """Parses the chunks of one file."""

    def __init__(self, path: str, delimiter: str, context: ReadContext) -> None:
        self._path, self._delimiter, self._context = path, delimiter, context
        self._names: list[str] = []

    def parse(self, records: _Records) -> Chunks:
        """Yield the records of a chunk, if it has any. The first record of the file is the header."""
        offset, data, starts = records
        if len(starts) and not self._names:
            header = data[starts[0] : starts[1]] if len(starts) > 1 else data[starts[0] :]
            self._names = _header(header, self._delimiter, self._path)
            starts = starts[1:]
        if len(starts):
            first = int(starts[0])
            yield self._parse(offset + first, data[first:], starts - first)

    def _parse(self, offset: int, data: bytes, starts: np.ndarray) -> Chunk:
        size, counts, config = len(data), self._context.counts, self._context.config
        data, positions = self._without_skipped(data, starts, offset + starts)
        table, positions = self._read_table(offset, data, positions)
        counts.add_read(table.num_rows)
        table = without_columns(table, config.drop)
        strings = pa.table([_strings(column) for column in table.columns], names=table.column_names)
        return Chunk(self._path, with_valid_strings(strings, config.text, counts), positions, size)

    def _read_table(self, offset: int, data: bytes, positions: np.ndarray) -> tuple[pa.Table, np.ndarray]:
        """Return the well-formed records and their positions; quarantine the others."""
        good = np.ones(len(positions), bool)

        def bad(row: Any) -> str:
            good[row.number - 1] = False
            reason = f"{row.actual_columns} fields instead of {row.expected_columns}"
            self._context.counts.unreadable(self._path, int(positions[row.number - 1]), reason)
            return "skip"

        table = _table(data, self._names, self._delimiter, bad)
        check_arrays(table)
        if table.num_rows != good.sum():
            raise UnreadableError(
                f"{self._path}: from byte {offset} on, it is ambiguous where records end; check the file's quotes"
            )
        return table, positions[good]

    def _without_skipped(self, data: bytes, starts: np.ndarray, positions: np.ndarray) -> tuple[bytes, np.ndarray]:
        ends = np.append(starts[1:], len(data))

        def try_record(row: int) -> None:
            _table(data[starts[row] : ends[row]], self._names, self._delimiter, lambda _: "skip")

        kept = self._context.start_batch(self._path, positions, try_record)
        if kept is None:
            return data, positions
        spans = zip(starts[kept].tolist(), ends[kept].tolist(), strict=True)
        return b"".join(data[start:end] for start, end in spans), positions[kept]


def _table(data: bytes, names: list[str], delimiter: str, bad: Callable[[Any], str]) -> pa.Table:
    return pc.read_csv(
        pa.BufferReader(data),
        read_options=pc.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
        parse_options=pc.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=bad),
        convert_options=pc.ConvertOptions(
            check_utf8=False, column_types=dict.fromkeys(names, pa.binary()), strings_can_be_null=False
        ),
    )


def _strings(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Reinterpret a binary column as strings, without validating the values."""
    return pa.chunked_array([chunk.view(pa.string()) for chunk in column.chunks], pa.string())
