"""Cuts a JSON array into chunks of whole elements, about 4 MiB each, in the form of JSON Lines (see kernels.py), and
skips elements over the length limit.

A chunk ends at the last comma between elements within 4 MiB, or after its first element if that element is longer. Like
the chunks of `LineCutter`, which has the same interface, chunks depend on the bytes alone. An empty element (a comma
too many) is skipped, like an empty line. A quote that is never closed joins the rest of the array into one element,
which is then quarantined. Memory: one chunk, or one element of permitted length, plus the data of one read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from datakit.errors import UnreadableError
from datakit.normalize.readers.json_arrays.envelope import ENVELOPE_BYTES, array_start, check_rest
from datakit.normalize.readers.json_arrays.recognition import Peeked
from datakit.normalize.readers.line_chunks import CHUNK_BYTES
from datakit.normalize.readers.streams import DamagedError
from datakit.printable import one_line

CLOSING_BRACKET = ord("]")


class ElementCutter:
    """Yields chunks as pairs (offset of the first byte, bytes). `position` is the offset of the next byte to yield.

    limit, too_long: as for `LineCutter`.
    """

    def __init__(self, path: str, limit: int, too_long: Callable[[int], None]) -> None:
        self.position: int = 0
        self._path, self._limit, self._too_long = path, max(limit, CHUNK_BYTES), too_long
        self._buffer = bytearray()
        self._state = np.array([1, 0, 0], np.int64)
        self._scanned = self._last = 0  # both count from the start of the buffer
        self._skipping = False
        self._name: str | None = None

    def chunks(self, stream: Peeked) -> Iterator[tuple[int, bytes]]:
        """Yield every chunk of the array. Raises UnreadableError, and DamagedError if the array is not closed."""
        self.position, self._name = array_start(self._path, stream.head(ENVELOPE_BYTES))
        unread, closed = self.position, -1
        parts = iter(stream)
        for part in parts:
            self._buffer += part[unread:]
            unread = max(0, unread - len(part))
            while (closed := self._scan()) < 0 and (chunk := self._next()) is not None:
                if chunk[1]:
                    yield chunk
            if closed >= 0:
                break
        if closed < 0:
            raise DamagedError("the file ends before its JSON array does")
        if closed > self._limit and not self._skipping:
            self._too_long(self.position)
            self._skipping = True
        if closed and not self._skipping:
            yield self._take(closed)
        else:
            self._drop(closed)
        self._finish(parts)

    def whole_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the whole elements that were still buffered when the stream broke off."""
        if self._last and not self._skipping:
            yield self._take(self._last)

    def _window(self) -> int:
        return 1 if self._skipping else CHUNK_BYTES

    def _scan(self) -> int:
        """Scan up to the end of the window, and after it up to the first end of an element. Return the index of the
        bracket that closes the array, or -1.
        """
        # imported only here: it imports numba, which a command that only plans does not need
        from datakit.normalize.readers.json_arrays.kernels import scan_elements

        while self._scanned < len(self._buffer) and not (self._last and self._scanned >= self._window()):
            inside = self._scanned < self._window()
            stop = min(self._window(), len(self._buffer)) if inside and not self._skipping else len(self._buffer)
            data = np.frombuffer(self._buffer, np.uint8)[self._scanned : stop]
            scanned, last, closed = scan_elements(data, self._state, not inside or self._skipping)
            del data  # a bytearray cannot shrink while an array refers to it
            self._last = self._scanned + last if last else self._last
            self._scanned += scanned
            if closed >= 0:
                return self._scanned - 1
        return -1

    def _next(self) -> tuple[int, bytes] | None:
        """Return the next chunk, an empty one if an element is being skipped, or None if more input is needed."""
        if self._skipping:
            return self._skip()
        if self._last and self._scanned >= CHUNK_BYTES:
            if self._last > self._limit + 1:
                self._too_long(self.position)
                self._skipping = True
                return self._skip()
            return self._take(self._last)
        if not self._last and self._scanned > self._limit:
            self._too_long(self.position)
            self._skipping = True
            return self._skip()
        return None

    def _skip(self) -> tuple[int, bytes] | None:
        """Drop the scanned bytes of the element that is being skipped."""
        if self._last:
            self._drop(self._last)
            self._skipping = False
            return self.position, b""
        self._drop(self._scanned)
        return None

    def _take(self, end: int) -> tuple[int, bytes]:
        offset, chunk = self.position, bytes(memoryview(self._buffer)[:end])
        self._drop(end)
        return offset, chunk

    def _drop(self, length: int) -> None:
        del self._buffer[:length]
        self.position += length
        self._scanned, self._last = self._scanned - length, 0

    def _finish(self, parts: Iterable[bytes]) -> None:
        """Check the closing bracket, which comes first in the buffer, and what follows it."""
        if self._buffer[0] != CLOSING_BRACKET:
            raise UnreadableError(
                f"{one_line(self._path)}: at byte {self.position}, a closing brace stands where an element or the end "
                "of the JSON array was expected; correct the file, or exclude it"
            )
        rest = bytes(self._buffer[1:])
        for part in parts:
            rest = (rest + part).lstrip(b" \t\r\n") if self._name is None else rest + part
            if len(rest) > ENVELOPE_BYTES:
                break
        check_rest(self._path, self.position + 1, rest, self._name)
