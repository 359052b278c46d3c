"""Takes the texts out of a chunk of JSON Lines, so that pyarrow's parser, which reads byte by byte, gets short lines:
each keeps its other members, with an empty string as its text. Texts are most of the bytes, and the compiled pass reads
them several times as fast (`lines.py`).

The result is the same. The parser sees the same tokens as in the original lines, except for the content of one string
per line, so it accepts the same chunks and finds the same types in the other columns. A chunk is left to the parser as
a whole if any line has no text, a text that is not a string, or anything in its text that the pass does not read
(damage, NUL, lone surrogates); and if all texts are so short that they might be dates (`json_columns.py`).

Memory: the lines without their texts, and the texts, which become the column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datakit.normalize.readers.json_lines import DEEPEST, Lines

LONGEST_DATE = 64  # bytes; a text that is longer is not a date
LINE_BYTES, MOST_LINES = 16, 1 << 18  # chunks with shorter lines, on average, or more of them are left to the parser
MOST_BYTES = (1 << 31) - 1  # the most bytes of text that 32-bit offsets can address
UNKNOWN = -1
SPARE = 64  # bytes of room after an output, because the pass copies more than it needs


@dataclass(frozen=True)
class Taken:
    """A chunk whose texts were taken out. lines: where its lines were. line_ends: the number of line ends in the chunk.
    rest: the lines without their texts. texts: valid UTF-8, like `rest`.
    """

    lines: Lines
    line_ends: int
    rest: memoryview
    name: str
    texts: pa.StringArray

    def put_back(self, table: pa.Table) -> pa.Table | None:
        """Return the records of `rest` with their texts; None if the parser has not read one record per line."""
        place = table.column_names.index(self.name) if self.name in table.column_names else UNKNOWN
        if place == UNKNOWN or table.num_rows != len(self.texts) or table.column(place).type != self.texts.type:
            return None
        return table.set_column(place, self.name, self.texts)


def take_texts(chunk: bytes, name: str) -> Taken | None:
    """Take the texts, the values of the member `name`, out of a chunk; None if the parser has to read all of it."""
    # imported only here: it imports numba, which a command that only plans does not need
    from datakit.normalize.readers.taken_texts import lines

    if len(chunk) > MOST_BYTES or "\\" in name:
        return None
    data, key = np.frombuffer(chunk, np.uint8), np.frombuffer(f'"{name}"'.encode(), np.uint8)
    room, most = len(chunk) + SPARE, min(len(chunk) // LINE_BYTES + 1, MOST_LINES)
    rest, texts = np.empty(room, np.uint8), np.empty(room, np.uint8)
    places = np.empty((3, most), np.int64)
    count, line_ends, used = lines.take_texts(data, key, DEEPEST, (rest, texts), places)
    offsets = np.concatenate([[0], places[2, : max(0, count)]]).astype(np.int32)
    if count <= 0 or np.diff(offsets).max() <= LONGEST_DATE:
        return None
    texts.resize(int(offsets[-1]), refcheck=False)  # the rest of the memory can be used again
    strings = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(texts))
    found = Lines(places[0, :count].copy(), places[1, :count].copy(), np.zeros(count, np.uint8))
    taken = Taken(found, line_ends, rest[:used].data, name, strings)
    return taken if _is_utf8(strings) and _is_utf8(one_string(taken.rest)) else None


def one_string(data: bytes | memoryview) -> pa.LargeStringArray:
    """Return an array with these bytes as its only string, without a copy."""
    offsets = pa.py_buffer(np.array([0, len(data)], np.int64))
    return pa.LargeStringArray.from_buffers(1, offsets, pa.py_buffer(data))


def _is_utf8(strings: pa.Array) -> bool:
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def warm() -> None:
    """Compile the kernel, or load it from numba's cache on disk."""
    take_texts(b'{"text": "a"}\n', "text")
