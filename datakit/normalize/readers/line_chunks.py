"""Cuts a stream of bytes into chunks of whole lines, about 4 MiB each, and skips lines over the length limit.

A chunk ends at the last line end within 4 MiB, or after its first line if that line is longer. The end of a chunk
depends on the bytes alone and not on the sizes of the parts in which they arrive, so a reader's decisions about each
chunk are the same in every run. Once a line exceeds the limit, the rest of it is skipped without being buffered.
Memory: one chunk, or one line of permitted length, plus the data of one read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CHUNK_BYTES = 4 << 20  # large enough to amortize the parser's cost per call, small enough for several copies in a task


class LineCutter:
    """Yields chunks as pairs (offset of the first byte, bytes). `position` is the offset of the next byte to yield.

    limit: the maximum length of a line in bytes; a limit below CHUNK_BYTES is raised to CHUNK_BYTES.
    too_long: called with the offset of each longer line.
    stop: yield only lines that start before this offset; None: all lines.
    inside: if true, skip the first line, which belongs to the previous range.
    """

    def __init__(
        self, position: int, stop: int | None, limit: int, too_long: Callable[[int], None], inside: bool = False
    ) -> None:
        self.position: int = position
        self._stop, self._limit, self._too_long = stop, max(limit, CHUNK_BYTES), too_long
        self._buffer = bytearray()
        self._skipping, self._searched = inside, 0

    def chunks(self, parts: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield every chunk of the stream `parts`; the last line may lack a line end."""
        for part in parts:
            self._buffer += part
            yield from self._complete()
            if self._done():
                return
        if self._buffer and not self._skipping:
            yield self._take(len(self._buffer))

    def whole_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the whole lines that were still buffered when the stream broke off."""
        end = 0 if self._skipping else self._buffer.rfind(b"\n") + 1
        if end:
            yield self._take(end)

    def _done(self) -> bool:
        return self._stop is not None and self.position >= self._stop

    def _complete(self) -> Iterator[tuple[int, bytes]]:
        """Yield the buffered chunks that further input could not change."""
        while not self._done():
            if self._skipping:
                if not self._skip():
                    return
                continue
            window = CHUNK_BYTES if self._stop is None else min(CHUNK_BYTES, self._stop - self.position)
            if len(self._buffer) < window:
                return
            end = self._chunk_end(window)
            if end > self._limit + 1 or (not end and len(self._buffer) > self._limit):
                self._too_long(self.position)
                self._skipping = True
            elif end:
                yield self._take(end)
            else:
                self._searched = len(self._buffer)
                return

    def _chunk_end(self, window: int) -> int:
        """Return the end of the last line that ends within `window` bytes. If there is none, return the end of the
        first line, or 0 if that line is still incomplete.
        """
        return self._buffer.rfind(b"\n", 0, window) + 1 or self._buffer.find(b"\n", max(window, self._searched)) + 1

    def _take(self, end: int) -> tuple[int, bytes]:
        offset, chunk = self.position, bytes(memoryview(self._buffer)[:end])
        self._drop(end)
        return offset, chunk

    def _drop(self, length: int) -> None:
        del self._buffer[:length]
        self.position += length
        self._searched = 0

    def _skip(self) -> bool:
        """Drop the buffered bytes of the line being skipped; return True if the end of the line was among them."""
        end = self._buffer.find(b"\n") + 1
        self._drop(end or len(self._buffer))
        self._skipping = not end
        return bool(end)
