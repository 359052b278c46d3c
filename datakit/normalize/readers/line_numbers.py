"""Counts the lines of a file of JSON Lines while it is read, so that a message about a record can name its line. A task
that reads a later part of a large file counts the lines before its part only when a message needs a line number, and
only if these lines have at most `MOST_BYTES` bytes in total. Further into a file, messages give the offset alone.
"""

from __future__ import annotations

from typing import BinaryIO

import numpy as np

# the lines before a task's part of a file are counted only if they have at most this many bytes in total
MOST_BYTES = 256 << 20
BLOCK_BYTES = 1 << 20
NEWLINE = ord("\n")


class LineNumbers:
    """Finds line numbers in one file, whose chunks are passed to `enter` in order. file: the open file that is being
    read; if None, lines are not numbered.
    """

    def __init__(self, file: BinaryIO | None = None) -> None:
        self._file = file
        self._first: int | None = None  # the offset from which lines are counted
        self._before: int | None = None  # the number of lines before that offset, once it is known
        self._lines = 0  # the number of lines between that offset and the current chunk
        self._offset, self._chunk = 0, b""
        self._ends: int | None = None  # the number of line ends in the current chunk, if it is known
        self._known = 0, 0  # the length of a prefix of the current chunk, and the number of line ends in it

    def enter(self, offset: int, chunk: bytes) -> None:
        """Make `chunk`, which starts at `offset` in the file, the current chunk."""
        self._first = offset if self._first is None else self._first
        if self._ends is None:  # numpy counts six times as fast as `bytes.count`
            self._ends = int(np.count_nonzero(np.frombuffer(self._chunk, np.uint8) == NEWLINE))
        self._lines += self._ends
        self._offset, self._chunk, self._known, self._ends = offset, chunk, (0, 0), None

    def counted(self, ends: int | None) -> None:
        """State the number of line ends in the current chunk, if it is known, so that they are not counted again."""
        self._ends = ends

    def pass_over(self, offset: int) -> str:
        """Count a line that is skipped because of its length, and return its `suffix`."""
        self.enter(offset, b"\n")
        return self.suffix(offset)

    def suffix(self, position: int) -> str:
        """Return " (line N)" for a position in the current chunk or at its end, or "" if N is not known."""
        if self._first is None or self._first > MOST_BYTES or self._file is None:
            return ""
        if self._before is None:
            self._before = _count(self._file, self._first)
        return f" (line {self._before + self._lines + self._inside(max(0, position - self._offset)) + 1})"

    def _inside(self, length: int) -> int:
        """Return the number of line ends in the first `length` bytes of the chunk. The count continues from that of the
        last call, since counting from the start for each of 20,000 unusable records in a chunk of 4 MiB took 50 s.
        """
        start, lines = self._known if self._known[0] <= length else (0, 0)
        self._known = length, lines + self._chunk.count(b"\n", start, length)
        return self._known[1]


def _count(file: BinaryIO, stop: int) -> int:
    """Return the number of line ends in the first `stop` bytes; keep the file's current position."""
    if not stop:
        return 0
    place, found, left = file.tell(), 0, stop
    file.seek(0)
    while left and (block := file.read(min(left, BLOCK_BYTES))):
        found, left = found + block.count(b"\n"), left - len(block)
    file.seek(place)
    return found
