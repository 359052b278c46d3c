"""Reads CSV and TSV files: a header, then records that may hold quoted line ends.

Every column is a string: the format has no types, and a guess per block would differ from block to block. A compiled
walk finds where records end, so blocks are whole records whose place is known; pyarrow parses them. A record with too
few or too many fields is quarantined with its offset.

Cost: about 300 MB/s a core.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from datakit.errors import ColumnError, UnreadableError
from datakit.normalize.readers.base import Block, Blocks, Reading
from datakit.normalize.readers.json import BYTE_ORDER_MARK
from datakit.normalize.readers.line_blocks import BLOCK_BYTES
from datakit.normalize.readers.streams import DamagedError, chunks
from datakit.normalize.readers.valid_strings import with_valid_strings
from datakit.normalize.schema_union import shown

Cut = tuple[int, bytes, np.ndarray]  # offset, bytes, where each record begins in them


def read_csv(reading: Reading, path: str, delimiter: str) -> Blocks:
    """The records of a file."""
    cutter = _RecordCutter(ord(delimiter), max(reading.config.max_document_bytes, BLOCK_BYTES))
    reader = _RecordReader(path, delimiter, reading)
    with reading.inputs.open(path) as file:
        try:
            for cut in cutter.blocks(chunks(file, path)):
                yield from reader.read(*cut)
        except DamagedError as error:
            for cut in cutter.whole_records():
                yield from reader.read(*cut)
            reading.findings.unreadable(path, cutter.position, f"{error}; what follows is lost")


class _RecordCutter:
    """Cuts a stream into blocks of whole records: (offset, bytes, where each record begins in them)."""

    def __init__(self, delimiter: int, limit: int) -> None:
        self._delimiter, self._limit, self.position = delimiter, limit, 0
        self._held = bytearray()

    def blocks(self, pieces: Iterator[bytes]) -> Iterator[Cut]:
        """All blocks; the last record needs no line end."""
        wanted = BLOCK_BYTES
        for piece in pieces:
            self._held += piece
            while len(self._held) >= wanted:
                cuts = list(self._cut(wanted))
                yield from cuts
                if not cuts and wanted > self._limit:
                    raise DamagedError(f"a record longer than max_document_bytes ({self._limit}), or an unclosed quote")
                wanted = BLOCK_BYTES if cuts else 2 * wanted
        if self._held:
            data = bytes(self._held)
            yield self.position, data, self._records(data)[0]

    def whole_records(self) -> Iterator[Cut]:
        """The whole records among what is held, after a stream broke off."""
        yield from self._cut(len(self._held))

    def _cut(self, length: int) -> Iterator[Cut]:
        data = bytes(memoryview(self._held)[:length])
        starts, end = self._records(data)
        if end:
            yield self.position, data[:end], starts[starts < end]
            del self._held[:end]
            self.position += end

    def _records(self, data: bytes) -> tuple[np.ndarray, int]:
        from datakit.normalize import kernels  # brings numba, which only tasks need

        starts = np.zeros(data.count(b"\n") + data.count(b"\r") + 1, np.int64)
        count, end = kernels.find_records(np.frombuffer(data, np.uint8), self._delimiter, starts)
        return starts[:count], int(end)


def warm() -> None:
    """Compile the kernel, or load it from numba's cache on disk."""
    _RecordCutter(44, 1)._records(b"a,b\n")


def _header(record: bytes, delimiter: str, path: str) -> list[str]:
    text = record.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace").strip("\r\n")
    names = next(csv.reader([text], delimiter=delimiter), [])
    if not names:
        raise UnreadableError(f"{path} has no header: a {delimiter!r}-separated file begins with its columns' names")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ColumnError(f"{path} has two columns named {shown(twice)}; rename one")
    return names


class _RecordReader:
    """Turns the blocks of one file into columns."""

    def __init__(self, path: str, delimiter: str, reading: Reading) -> None:
        self._path, self._delimiter = path, delimiter
        self._config, self._findings, self._context = reading.config, reading.findings, reading.context
        self._names: list[str] = []

    def read(self, offset: int, data: bytes, starts: np.ndarray) -> Blocks:
        """The records of a block, the first of which is the header."""
        if len(starts) and not self._names:
            header = data[starts[0] : starts[1]] if len(starts) > 1 else data[starts[0] :]
            self._names = _header(header, self._delimiter, self._path)
            starts = starts[1:]
        if len(starts):
            first = int(starts[0])
            yield self._parse(offset + first, data[first:], starts - first)

    def _parse(self, offset: int, data: bytes, starts: np.ndarray) -> Block:
        positions, size = offset + starts, len(data)
        data, positions = self._in_hand(data, starts, positions)
        good = np.ones(len(positions), bool)

        def bad(row: Any) -> str:
            good[row.number - 1] = False
            reason = f"{row.actual_columns} fields instead of {row.expected_columns}"
            self._findings.unreadable(self._path, int(positions[row.number - 1]), reason)
            return "skip"

        table = _table(data, self._names, self._delimiter, bad)
        if table.num_rows != good.sum():
            raise UnreadableError(
                f"{self._path}: no agreement on where records end, from byte {offset}; check its quotes"
            )
        self._findings.met(table.num_rows)
        table = table.drop_columns([name for name in self._config.drop if name in self._names])
        strings = pa.table([_strings(column) for column in table.columns], names=table.column_names)
        strings = with_valid_strings(strings, self._config.text, self._findings)
        return Block(self._path, strings, positions[good], size)

    def _in_hand(self, data: bytes, starts: np.ndarray, positions: np.ndarray) -> tuple[bytes, np.ndarray]:
        """The records, without those that are to be left out; see TaskContext.records."""
        ends = np.append(starts[1:], len(data))

        def alone(row: int) -> None:
            _table(data[starts[row] : ends[row]], self._names, self._delimiter, lambda _: "skip")

        kept, left_out = self._context.records(self._path, positions, alone)
        if kept is None:
            return data, positions
        for record in left_out:
            self._findings.unreadable(record.file, record.position, record.reason)
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
    """Bytes called text, not validated yet."""
    return pa.chunked_array(
        [
            pa.StringArray.from_buffers(len(chunk), *chunk.buffers()[1:], chunk.buffers()[0], -1, chunk.offset)
            for chunk in column.chunks
        ],
        pa.string(),
    )
