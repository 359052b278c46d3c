"""Gives the record cutter a window onto an archive's content, in which it can look ahead and search.

The window ends at a damaged member, since no record continues behind one. It knows where members begin: a record may
begin there even if the line before it has no end. Bytes are copied only when the window is extended.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator

from datakit.normalize.readers.web.pieces import Content, Damage, Piece

LINE_ENDS = re.compile(rb"[\r\n]*")
SEARCHED_BYTES = 1 << 20  # how much of the content is searched at a time
LONGEST_LINE = 16 << 10  # more than the longest first line of a record


class Window:
    """A window onto the content of an archive, with a current place in it. `data[at]` is the byte at this place.

    damage: the damaged member at which the window ends, if it has been reached.
    """

    def __init__(
        self, pieces: Iterator[Piece | Damage], start: int, plain: bool, report: Callable[[int], None]
    ) -> None:
        """start: the content offset of the first piece. plain: True if the archive is not compressed. report: receives
        the content offset that has been reached.
        """
        self._pieces, self._plain, self._report = pieces, plain, report
        self.data: Content = b""
        self.at: int = 0
        self.damage: Damage | None = None
        self._origin = self._end = start  # the content offsets of the window's first byte and of its end
        self._members: deque[tuple[int, int]] = deque()  # (content offset, stored offset) of members in the window

    @property
    def position(self) -> int:
        """The content offset of the current place."""
        return self._origin + self.at

    @property
    def left(self) -> int:
        """The number of bytes in the window, from the current place on."""
        return len(self.data) - self.at

    def fill(self, size: int) -> bool:
        """Extend the window to `size` bytes from the current place on. Return False if the content ends before."""
        missing = self.at + size - len(self.data)
        if missing <= 0:
            return True
        # unless a line begins at the current place, one byte before it is kept, which shows that none does
        dropped = self.at if self.data.endswith(b"\n", 0, self.at) else max(0, self.at - 1)
        parts = [self.data[dropped:]] if dropped < len(self.data) else []
        self._origin, self.at = self._origin + dropped, self.at - dropped
        while missing > 0 and (piece := self._next()) is not None:
            parts.append(piece)
            missing -= len(piece)
        self.data = parts[0] if len(parts) == 1 else b"".join(parts)
        while len(self._members) > 1 and self._members[1][0] <= self.position:
            self._members.popleft()
        return missing <= 0

    def next_member(self) -> Piece | None:
        """If all of the window has been passed, and ended with a line end, continue with the next piece alone. Return
        this piece, now the whole window, if a member begins with it.
        """
        if self.at < len(self.data) or not (self.data.endswith(b"\n") or not self.data):
            return None
        self._origin, self.at, self.data = self._end, 0, b""
        piece = self._next_piece()
        if piece is None:
            return None
        self.data = piece.data
        if not piece.first:
            return None
        self._members.clear()
        self._members.append((self._origin, piece.stored))
        return piece

    def _next(self) -> Content | None:
        piece = self._next_piece()
        if piece is None:
            return None
        if piece.first:
            self._members.append((self._end - len(piece.data), piece.stored))
        return piece.data

    def _next_piece(self) -> Piece | None:
        piece = None if self.damage is not None else next(self._pieces, None)
        if isinstance(piece, Damage):
            self.damage = piece
        if not isinstance(piece, Piece):
            return None
        self._end += len(piece.data)
        self._report(self._end)
        return piece

    def advance(self, size: int) -> bool:
        """Move `size` bytes on. Return False if the content ends before; the current place is then its end."""
        while size > (left := len(self.data) - self.at):
            size -= left
            self.at = len(self.data)
            if not self.fill(1):
                return False
        self.at += size
        return True

    def record_inside(self, first: int, last: int, line: re.Pattern[bytes]) -> int | None:
        """Return the content offset of the first member of a compressed file, from `first` on and before `last`, that
        begins with a record; None if none does. Only members in the window are looked at. line: a record's first line.
        """
        inside = (begin for begin, _ in self._members if max(first, self._origin) <= begin < last)
        return next((begin for begin in inside if line.match(self.data, begin - self._origin)), None)

    def pass_over(self, size: int, line: re.Pattern[bytes]) -> bool:
        """Move `size` bytes on. If a member begins with a record before that, stop there and return False; if the
        content ends before, stop at its end and return False. line: see `record_inside`.
        """
        first, last = self.position + 1, self.position + size
        while (begin := self.record_inside(first, last, line)) is None:
            if last - self.position <= self.left:
                self.at += last - self.position
                return True
            self.at = len(self.data)
            if not self.fill(1):
                return False
        self.at = begin - self._origin
        return False

    def pass_line_ends(self) -> bool:
        """Move past line ends. Return False if the content ends with them."""
        while self.at < len(self.data) or self.fill(1):
            if self.data[self.at] not in b"\r\n":
                return True
            found = LINE_ENDS.match(self.data, self.at)
            self.at = found.end() if found else self.at
        return False

    def find(self, first_line: re.Pattern[bytes]) -> bool:
        """Move to the next record from the current place on, or to the end of the content and return False.

        first_line: matches the first line of a record, at the beginning of any line.
        """
        while True:
            found = first_line.search(self.data, self.at)
            starts = [found.start()] if found else []
            for begin, _ in self._members:
                if begin >= self.position and first_line.match(self.data[begin - self._origin :][:LONGEST_LINE]):
                    starts.append(begin - self._origin)
                    break
            if starts:
                self.at = min(starts)
                return True
            known = len(self.data)
            self.at = max(self.at, known - LONGEST_LINE)
            before = self.left
            self.fill(before + SEARCHED_BYTES)
            if self.left == before:
                self.at = len(self.data)
                return False

    def stored(self) -> int:
        """The place of the record at the current place, in the stored file: the offset of the member that holds its
        first byte or, in a file that is not compressed, its own offset.
        """
        if self._plain:
            return self.position
        position = self._origin + self.at
        return next((stored for begin, stored in reversed(self._members) if begin <= position), 0)

    def begins_member(self, offset: int = 0) -> bool:
        """Return True if a member of a compressed file begins `offset` bytes after the current place."""
        position = self._origin + self.at + offset
        return any(begin == position for begin, _ in self._members)

    def may_be_cut(self) -> bool:
        """Return True if reading may begin at the current place: if a member begins here, or nothing is compressed."""
        return self._plain or self.begins_member()
