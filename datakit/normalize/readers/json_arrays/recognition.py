"""Tells a file that is one JSON array from a file of JSON Lines, by its beginning.

A file of JSON Lines may begin with a line that is an array by itself; such a line is a bad record among others. A file
therefore counts as one array only if its first line is `[` or `[{`, or if an object follows the bracket and the array
does not end on the first of several lines. An empty array counts if nothing else is in the file. Only the first 4 MiB
are looked at, and only if the file begins with a bracket.
"""

from __future__ import annotations

from collections.abc import Iterator

from datakit.normalize.readers.line_chunks import BYTE_ORDER_MARK, CHUNK_BYTES
from datakit.normalize.readers.streams import DamagedError

WHITE_SPACE = b" \t\r\n"
HEAD_BYTES = 64 << 10
WINDOW_BYTES = CHUNK_BYTES


class Peeked:
    """A stream of bytes whose beginning can be looked at before the stream is read."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._head = bytearray()
        self._error: DamagedError | None = None
        self._ended = False

    def head(self, size: int) -> bytes:
        """Return the first `size` bytes of the stream, or fewer if it has fewer."""
        while len(self._head) < size and not self._ended:
            try:
                self._head += next(self._parts)
            except StopIteration:
                self._ended = True
            except DamagedError as error:  # raised again when the reader gets to this place
                self._ended, self._error = True, error
        return bytes(memoryview(self._head)[:size])

    def __iter__(self) -> Iterator[bytes]:
        head, self._head = bytes(self._head), bytearray()
        if head:
            yield head
        if self._error is not None:
            raise self._error
        if not self._ended:
            yield from self._parts


def holds_array(stream: Peeked) -> bool:
    """Return True if the stream is one JSON array (see the module's docstring)."""
    head = _stripped(stream.head(HEAD_BYTES)) or _stripped(stream.head(WINDOW_BYTES))
    if not head.startswith(b"["):
        return False
    text = _stripped(stream.head(WINDOW_BYTES))
    first, _, others = text.partition(b"\n")
    if first.rstrip(WHITE_SPACE) in (b"[", b"[{"):
        return True
    content = text[1:].lstrip(WHITE_SPACE)
    if not content.startswith(b"{"):
        return content.rstrip(WHITE_SPACE) == b"]"
    return not first.rstrip(WHITE_SPACE).endswith(b"]") or not others.strip(WHITE_SPACE)


def _stripped(head: bytes) -> bytes:
    return head.removeprefix(BYTE_ORDER_MARK).lstrip(WHITE_SPACE)
