"""Cuts a stream of bytes into blocks of whole lines.

Where a block ends depends on the bytes alone (about 4 MiB, at the last line end inside), not on how they arrived, so
whatever a reader decides per block is the same in every run. A line longer than the limit is streamed past without
being held; memory is one block, or one line of allowed length, plus one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

BLOCK_BYTES = 4 << 20


class LineCutter:
    """Blocks `(offset of the first byte, bytes)`. `position` is the offset of the first byte that was not delivered.

    limit: the longest line that is delivered, not less than BLOCK_BYTES; `too_long(offset)` is called for the others.
    stop: only lines that begin before this offset are delivered. inside: the first line is not ours: skip it.
    """

    def __init__(
        self, position: int, stop: int | None, limit: int, too_long: Callable[[int], None], inside: bool = False
    ) -> None:
        self.position, self._stop, self._limit, self._too_long = position, stop, max(limit, BLOCK_BYTES), too_long
        self._held = bytearray()
        self._skipping, self._searched = inside, 0

    def blocks(self, pieces: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
        """All blocks; the last line of the stream needs no line end."""
        for piece in pieces:
            self._held += piece
            yield from self._complete()
            if self._done():
                return
        if self._held and not self._skipping:
            yield self._deliver(len(self._held))

    def whole_lines(self) -> Iterator[tuple[int, bytes]]:
        """The whole lines among what is held, after a stream broke off. What then remains is the rest of a line."""
        end = 0 if self._skipping else self._held.rfind(b"\n") + 1
        if end:
            yield self._deliver(end)

    def _done(self) -> bool:
        return self._stop is not None and self.position >= self._stop

    def _complete(self) -> Iterator[tuple[int, bytes]]:
        """The blocks that more bytes would not change."""
        while not self._done():
            if self._skipping:
                if not self._skip():
                    return
                continue
            window = BLOCK_BYTES if self._stop is None else min(BLOCK_BYTES, self._stop - self.position)
            if len(self._held) < window:
                return
            end = self._held.rfind(b"\n", 0, window) + 1 or self._held.find(b"\n", max(window, self._searched)) + 1
            if end > self._limit + 1 or (not end and len(self._held) > self._limit):
                self._too_long(self.position)
                self._skipping = True
            elif end:
                yield self._deliver(end)
            else:
                self._searched = len(self._held)
                return

    def _deliver(self, end: int) -> tuple[int, bytes]:
        offset, block = self.position, bytes(memoryview(self._held)[:end])
        self._drop(end)
        return offset, block

    def _drop(self, length: int) -> None:
        del self._held[:length]
        self.position += length
        self._searched = 0

    def _skip(self) -> bool:
        """Drop up to the end of the line that is too long; whether its end was found."""
        end = self._held.find(b"\n") + 1
        self._drop(end or len(self._held))
        self._skipping = not end
        return bool(end)
