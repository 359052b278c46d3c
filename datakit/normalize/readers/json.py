"""Reads JSON Lines and JSON arrays: skips a byte order mark, replaces invalid UTF-8, chooses the columnar or the line
parser for each chunk, and quarantines bad lines. Before parsing, invalid UTF-8 in any field is replaced by U+FFFD, as
by Python's `errors="replace"`. A file that is one JSON array (`json_arrays/recognition.py`) is cut into its elements,
each of which is then read like a line. A line is bad if it is not a record (see json_rows.py) or is too long. A
transform gets the id column (named by the source's `id`) as strings, in which numbers keep their digits as written.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyarrow import types

from datakit.engine.user_code import required_text
from datakit.errors import UnreadableError
from datakit.normalize.columns.schema_union import fit_column
from datakit.normalize.config import Config
from datakit.normalize.readers.base import Chunk, Chunks, ReadContext
from datakit.normalize.readers.json_arrays.elements import ElementCutter
from datakit.normalize.readers.json_arrays.recognition import Peeked, holds_array
from datakit.normalize.readers.json_columns import ColumnParser
from datakit.normalize.readers.json_lines import Lines, find_lines
from datakit.normalize.readers.json_rows import expected_of, parse_lines, table_of
from datakit.normalize.readers.line_chunks import BYTE_ORDER_MARK, LineCutter
from datakit.normalize.readers.line_numbers import LineNumbers
from datakit.normalize.readers.streams import DamagedError, decompressed
from datakit.normalize.readers.taken_texts.take import one_string, take_texts
from datakit.normalize.settings.column_settings import STRING
from datakit.printable import one_line


def read_json(context: ReadContext, path: str, start: int = 0, stop: int | None = None, array: bool = False) -> Chunks:
    """Yield the records that start in bytes [start, stop) or, if `stop` is None, at `start` or later. Raises
    UnreadableError or ColumnError.

    array: the file is known to hold one JSON array, or an object with one member that is an array. Otherwise, the
    beginning of the file shows whether it is an array, which is read only as a whole.
    """
    limit, counts = context.config.max_document_bytes, context.counts
    with context.inputs.open(path) as file:
        numbers = LineNumbers(file)

        def too_long(offset: int) -> None:
            reason = f"longer than max_document_bytes ({limit})"
            counts.unreadable(path, offset, reason + numbers.pass_over(offset))

        lines = LineCutter(max(0, start - 1), stop, limit, too_long, inside=start > 0)
        stream = Peeked(decompressed(file, path, lines.position, context.streams))
        cutter: LineCutter | ElementCutter = lines
        if array or (start == 0 and holds_array(stream)):
            if stop is not None:
                raise UnreadableError(
                    f"{one_line(path)} is one JSON array, though its name implies JSON Lines; set the source's "
                    '`format = "json-array"`'
                )
            numbers, cutter = LineNumbers(), ElementCutter(path, limit, too_long)  # elements have no line numbers
        parser = _ChunkParser(path, context, numbers)
        try:
            for offset, data in cutter.chunks(stream):
                yield from parser.parse(offset, data)
        except DamagedError as error:
            for offset, data in cutter.whole_lines():
                yield from parser.parse(offset, data)
            counts.unreadable(path, cutter.position, f"{error}; what follows is lost{numbers.suffix(cutter.position)}")


class _ChunkParser:
    """Parses the chunks of one file."""

    def __init__(self, path: str, context: ReadContext, numbers: LineNumbers) -> None:
        self._path, self._context, self._numbers = path, context, numbers
        config, texts = context.config, required_text(context.config.transform)
        raw = config.transform is not None
        self._conflicts = {} if raw else config.conflicts
        strings = [name for name, policy in self._conflicts.items() if policy == STRING]
        self._expected = expected_of(config, texts)
        # the member whose strings become the text as they are
        self._text = config.text_name if config.text_form is None and not raw else None
        self._columns = ColumnParser(config.id, texts, self._expected.form, strings)

    def parse(self, offset: int, data: bytes) -> Chunks:
        """Yield the records of the chunk at `offset`, if it has any."""
        size = len(data)
        self._numbers.enter(offset, data)
        if offset == 0 and data.startswith(BYTE_ORDER_MARK):
            data, offset = data[len(BYTE_ORDER_MARK) :], offset + len(BYTE_ORDER_MARK)
        taken = take_texts(data, self._text) if self._text is not None else None
        lines = find_lines(data) if taken is None else taken.lines
        self._numbers.counted(None if taken is None else taken.line_ends)
        if not len(lines):
            return
        whole = data
        data, lines, positions = self._without_skipped(data, lines, offset + lines.starts)
        if taken is None or data is not whole:
            taken, (data, invalid) = None, valid_utf8(data)
            if invalid:
                self._context.counts.counters["normalize/invalid_utf8"] += invalid
                lines = find_lines(data)
        table = self._columns.parse(data, len(lines), taken) if lines.plain else None
        if table is None:
            if taken is not None:
                lines, taken = find_lines(data), None
                positions = offset + lines.starts
                self._numbers.counted(None)
            table, numbers = self._parse_by_line(data, lines, positions)
            positions = positions[numbers]
        if table.num_rows:
            self._context.counts.add_read(table.num_rows)
            table = self._context.choice.read_columns(table)
            table = with_id_as_string(table, self._context.config)
            yield Chunk(self._path, table, positions, size, valid_texts=taken is not None)

    def _without_skipped(self, data: bytes, lines: Lines, positions: np.ndarray) -> tuple[bytes, Lines, np.ndarray]:
        kept = self._context.start_batch(
            self._path, positions, lambda row: self._try_record(data[lines.starts[row] : lines.ends[row]])
        )
        if kept is None:
            return data, lines, positions
        spans = zip(lines.starts[kept].tolist(), lines.ends[kept].tolist(), strict=True)
        data = b"".join(data[start:end] + b"\n" for start, end in spans)
        return data, find_lines(data), positions[kept]

    def _try_record(self, line: bytes) -> None:
        for _ in _ChunkParser(self._path, self._context.for_trial(), LineNumbers()).parse(
            len(BYTE_ORDER_MARK) + 1, line
        ):
            pass

    def _parse_by_line(self, data: bytes, lines: Lines, positions: np.ndarray) -> tuple[pa.Table, list[int]]:
        def bad(number: int, reason: str) -> None:
            position = int(positions[number])
            self._context.counts.unreadable(self._path, position, reason + self._numbers.suffix(position))

        records, numbers, surrogates = parse_lines(data, lines, self._expected, bad)
        self._context.counts.counters["normalize/invalid_utf8"] += surrogates
        return table_of(records, self._path, self._context.choice.reads, self._conflicts), numbers


def with_id_as_string(table: pa.Table, config: Config) -> pa.Table:
    """Return the table. If a transform is set, the id column is converted to strings, so its type never varies."""
    place = table.column_names.index(config.id) if config.id in table.column_names else -1
    if config.transform is None or place < 0 or types.is_nested(table.column(place).type):
        return table
    return table.set_column(place, config.id, fit_column(table.column(place), pa.string()))


def valid_utf8(data: bytes) -> tuple[bytes, int]:
    """Return `data` with invalid UTF-8 replaced, and the number of lines that changed."""
    try:
        one_string(data).validate(full=True)
        return data, 0
    except pa.ArrowInvalid:
        pass
    lines, changed = data.split(b"\n"), 0
    for number, line in enumerate(lines):
        text = line.decode("utf-8", "replace").encode()
        changed += text != line
        lines[number] = text
    return b"\n".join(lines), changed
