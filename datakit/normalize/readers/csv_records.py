"""Cuts a stream of CSV or TSV data into chunks of whole records, and drops overlong records while they are read.

A compiled pass finds the ends of the records (quoted fields may contain line ends). It starts in a known state: at the
start of a record. If a record exceeds the limit, its bytes are dropped, except those that bring the next pass into the
state that the current pass has reached. A record of any length therefore takes no more memory than the longest
permitted one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from datakit.normalize.config import UNQUOTED, Config
from datakit.normalize.readers.base import longest_record
from datakit.normalize.readers.line_chunks import CHUNK_BYTES
from datakit.normalize.readers.streams import DamagedError


class Records(NamedTuple):
    """Whole records: their bytes `data`, the file offset of `data`, and the start of each record in `data` (int64).

    sound: bool [records], False for a record in which text follows a closing quote.
    """

    offset: int
    data: bytes
    starts: np.ndarray
    sound: np.ndarray


class Dialect(NamedTuple):
    """The delimiter of a file, and whether its fields may be quoted."""

    delimiter: str
    quoted: bool


class RecordCutter:
    """Cuts a stream of bytes into chunks of whole records. `position` is the offset of the next byte to yield.

    too_long: called with the offset of each record that is longer than the limit.
    """

    def __init__(self, dialect: Dialect, config: Config, too_long: Callable[[int], None] = lambda offset: None) -> None:
        self._dialect, self._field_limits = dialect, (config.max_field_bytes, config.max_field_lines)
        self._limit, self._too_long = longest_record(config), too_long
        self.position: int = 0
        self._buffer, self._skipping = bytearray(), False

    def chunks(self, parts: Iterator[bytes]) -> Iterator[Records]:
        """Yield every chunk of the stream `parts`; the last record may lack a line end. Raises DamagedError."""
        wanted = CHUNK_BYTES
        for part in parts:
            self._buffer += part
            while len(self._buffer) >= wanted:
                cuts = list(self._cut(wanted))
                yield from cuts
                if not cuts and wanted > self._limit:
                    self._skip(wanted)
                    wanted = max(CHUNK_BYTES, len(self._buffer) + 1)
                else:
                    wanted = CHUNK_BYTES if cuts else 2 * wanted
        yield from self._cut(len(self._buffer), final=True)

    def whole_records(self) -> Iterator[Records]:
        """Yield the whole records that were still buffered when the stream broke off."""
        with suppress(DamagedError):
            yield from self._cut(len(self._buffer))

    def _skip(self, length: int) -> None:
        """Drop the first `length` bytes, which belong to one record, except those that decide how the rest is read.

        If the record's last field is open, or may be open because its last byte is a quote, this field is kept.
        Otherwise, only the last byte is kept. What precedes it is replaced by `x` (an unquoted field) if the record is
        sound so far, and by `""x` (text after a closing quote) if it is not. `find_records` then reads the rest as if
        the dropped bytes still preceded it. `_cut` drops the resulting record.
        """
        if not self._skipping:
            self._too_long(self.position)
            self._skipping = True
        data = bytes(memoryview(self._buffer)[:length])
        _, sound, _, opened, _, field = self._find_records(data)
        if sound[0] and (opened >= 0 or data.endswith(b'"')):
            dropped = max(0, field - 1)
        else:
            state = b"x" if sound[0] else b'""x'
            dropped = length - 1 - len(state)
            self._buffer[dropped : length - 1] = state
        del self._buffer[:dropped]
        self.position += dropped

    def _cut(self, length: int, final: bool = False) -> Iterator[Records]:
        """Yield the whole records in the first `length` bytes. final: True if the file ends there.

        After these records, raises DamagedError if the next record has a quoted field that is too long or never ends.
        """
        data = bytes(memoryview(self._buffer)[:length])
        starts, sound, end, opened, too_long, _ = self._find_records(data)
        end = length if final and opened < 0 else end
        if end:
            quote = self.position + opened
            whole = (starts < end) & ((starts > 0) | (not self._skipping))
            self._skipping = False
            yield Records(self.position, data[:end], starts[whole], sound[whole])
            del self._buffer[:end]
            self.position += end
            opened = quote - self.position if opened >= 0 else -1
        if too_long or (final and opened >= 0):
            raise DamagedError(self._open_quote(self.position + opened, too_long))

    def _open_quote(self, place: int, too_long: bool) -> str:
        most, lines = self._field_limits
        within = f"within max_field_bytes ({most}) and max_field_lines ({lines})" if too_long else "in the file"
        return f"the quote at byte {place} is not closed {within} (set quoting = {UNQUOTED!r} if a quote is text)"

    def _find_records(self, data: bytes) -> tuple[np.ndarray, np.ndarray, int, int, bool, int]:
        # imported only here: it imports numba, which a command that only plans does not need
        from datakit.normalize import kernels

        starts = np.zeros(data.count(b"\n") + data.count(b"\r") + 1, np.int64)
        sound = np.zeros(len(starts), np.bool_)
        dialect = ord(self._dialect.delimiter), ord('"') if self._dialect.quoted else -1
        octets = np.frombuffer(data, np.uint8)
        count, end, opened, too_long, field = kernels.find_records(octets, dialect, self._field_limits, starts, sound)
        return starts[:count], sound[:count], int(end), int(opened), bool(too_long), int(field)


def warm() -> None:
    """Compile the kernel, or load it from numba's cache on disk."""
    RecordCutter(Dialect(",", True), Config())._find_records(b"a,b\n")
