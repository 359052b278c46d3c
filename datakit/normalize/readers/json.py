"""Reads JSON Lines: blocks of whole lines into columns, with every record that is no record named.

Invalid UTF-8 is replaced before the parser sees it (U+FFFD for each maximal broken part, as Python does), in whatever
field it stands. A UTF-8 byte order mark is skipped. A file that is one JSON array is refused with the command that
turns it into lines.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datakit.errors import UnreadableError
from datakit.normalize.readers.base import Block, Blocks, Reading
from datakit.normalize.readers.json_columns import ColumnParser
from datakit.normalize.readers.json_lines import Lines, find_lines
from datakit.normalize.readers.json_rows import Expected, parse_lines, table_of
from datakit.normalize.readers.line_blocks import LineCutter
from datakit.normalize.readers.streams import DamagedError, chunks

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_json(reading: Reading, path: str, start: int = 0, stop: int | None = None) -> Blocks:
    """The records whose lines begin in bytes [start, stop) of a file; `stop` None is its end."""
    limit, findings = reading.config.max_document_bytes, reading.findings
    cutter = LineCutter(
        max(0, start - 1),
        stop,
        limit,
        lambda offset: findings.unreadable(path, offset, f"longer than max_document_bytes ({limit})"),
        inside=start > 0,
    )
    reader = _BlockReader(path, reading)
    with reading.inputs.open(path) as file:
        try:
            for offset, block in cutter.blocks(chunks(file, path, cutter.position)):
                yield from reader.read(offset, block)
        except DamagedError as error:
            for offset, block in cutter.whole_lines():
                yield from reader.read(offset, block)
            findings.unreadable(path, cutter.position, f"{error}; what follows is lost")


class _BlockReader:
    """Turns the blocks of one file into columns."""

    def __init__(self, path: str, reading: Reading) -> None:
        self._path, self._drop, self._findings, self._reading = path, reading.config.drop, reading.findings, reading
        self._parser = ColumnParser()
        config = reading.config
        self._expected = Expected(config.text, config.id) if config.transform is None else Expected(None, None)

    def read(self, offset: int, block: bytes) -> Blocks:
        """The records of one block."""
        size = len(block)
        if offset == 0 and block.startswith(BYTE_ORDER_MARK):
            block, offset = block[len(BYTE_ORDER_MARK) :], offset + len(BYTE_ORDER_MARK)
        lines = find_lines(block)
        if not len(lines):
            return
        if offset <= len(BYTE_ORDER_MARK):
            self._refuse_array(block, lines)
        positions = offset + lines.starts
        kept, left_out = self._reading.context.records(
            self._path, positions, lambda row: self._alone(block[lines.starts[row] : lines.ends[row]])
        )
        if kept is not None:
            for record in left_out:
                self._findings.unreadable(record.file, record.position, record.reason)
            spans = zip(lines.starts[kept].tolist(), lines.ends[kept].tolist(), strict=True)
            block = b"".join(block[start:end] + b"\n" for start, end in spans)
            lines, positions = find_lines(block), positions[kept]
        mended, broken = _valid_utf8(block)
        if broken:
            block, lines = mended, find_lines(mended)
            self._findings.counters["normalize/invalid_utf8"] += broken
        table = self._parser.parse(block, len(lines)) if lines.plain else None
        if table is None:
            table, numbers = self._slowly(block, lines, positions)
            positions = positions[numbers]
        present = [name for name in self._drop if name in table.column_names]
        if table.num_rows:
            self._findings.met(table.num_rows)
            yield Block(self._path, table.drop_columns(present) if present else table, positions, size)

    def _alone(self, line: bytes) -> None:
        """Parse one line, for nothing."""
        for _ in _BlockReader(self._path, self._reading.for_nothing()).read(len(BYTE_ORDER_MARK) + 1, line):
            pass

    def _slowly(self, block: bytes, lines: Lines, positions: np.ndarray) -> tuple[pa.Table, list[int]]:
        def bad(number: int, reason: str) -> None:
            self._findings.unreadable(self._path, int(positions[number]), reason)

        records, numbers, mended = parse_lines(block, lines, self._expected, bad)
        self._findings.counters["normalize/invalid_utf8"] += mended
        return table_of(records, self._path, self._drop), numbers

    def _refuse_array(self, block: bytes, lines: Lines) -> None:
        first = block[lines.starts[0] : lines.ends[0]]
        if first in (b"[", b"[{"):
            raise UnreadableError(
                f"{self._path} is one JSON array, not one object a line; convert it (jq -c '.[]' FILE > FILE.jsonl)"
            )


def _valid_utf8(block: bytes) -> tuple[bytes, int]:
    """The block as valid UTF-8, and how many of its lines were not."""
    whole = pa.Array.from_buffers(
        pa.large_string(), 1, [None, pa.py_buffer(np.array([0, len(block)], np.int64)), pa.py_buffer(block)]
    )
    try:
        whole.validate(full=True)
        return block, 0
    except pa.ArrowInvalid:
        pass
    lines, broken = block.split(b"\n"), 0
    for number, line in enumerate(lines):
        text = line.decode("utf-8", "replace").encode()
        broken += text != line
        lines[number] = text
    return b"\n".join(lines), broken
