"""Cuts an archive's content into records, and goes on at the next record behind a broken one.

A WARC record is a first line (`WARC/1.0`), header lines, a blank line, a block of Content-Length bytes, and two line
ends. An ARC record is a line that ends with the length of its block, the block, and a line end. A record is broken if

- no record begins where the one before ended: what lies there, up to the next record, counts as one broken record;
- its header does not end within HEADER_BYTES, or states no length or several lengths;
- its block is not followed by line ends, by another record or by the end of a member: then its length is wrong;
- a member begins with a record inside its block: then its length is wrong, too;
- the content ends inside it, or a damaged member lies in it.

After a broken record, the next one is searched for from the end of its header on, so that a length that is too large
does not swallow the records that follow. There, a record is recognized by its first line. FastWARC, which this reader
uses for headers and messages, stops at the first broken record, and reads no ARC files (version 2.0).

A block longer than `longest` is passed over. Only its beginning is kept, which suffices to see what it is. Such a
length may be wrong as well. In a file that is not compressed, the bytes behind the block are therefore looked at first;
in other files, passing over ends at a member that begins with a record. Only in a file that was compressed as a whole
does a wrong length of this size cost all that it covers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from datakit.normalize.formats import ARC, WARC, compression_of
from datakit.normalize.readers.base import ReadContext
from datakit.normalize.readers.web.headers import NO_LENGTH, as_length, content_length, header_end, line_end
from datakit.normalize.readers.web.members import ARC_LINE, WARC_LINE, members
from datakit.normalize.readers.web.pieces import Content
from datakit.normalize.readers.web.window import LONGEST_LINE, Window
from datakit.normalize.record_counts import IN

HEADER_BYTES = 64 << 10  # FastWARC allows 32 KiB
BEGINNING_BYTES = 64 << 10  # what is kept of a block that is too long
LINES = {WARC: WARC_LINE, ARC: ARC_LINE}
FIRST_LINES = {kind: re.compile(rb"(?m)^" + line.pattern) for kind, line in LINES.items()}
SEPARATORS = {WARC: re.compile(rb"\r?\n\r?\n"), ARC: re.compile(rb"\r?\n")}
SEPARATOR_BYTES = 4
Look = Callable[[int], bytes | None]
LONE_END = b"\r\n\r\n"  # behind the block of a record that has a member of its own
FILE_ENDS = "the file ends inside this record"


class Record(NamedTuple):
    """A record with its bytes as the archive stores them.

    position: its byte offset in the uncompressed file. stored: see `Window.stored`. may_be_cut: see
    `Window.may_be_cut`. header: its header without the blank line, or the line of an ARC record. block: the bytes
    where they lie in the window, if they fill most of it; else a copy. whole: False if the block is longer than
    permitted; `block` then holds its beginning.
    """

    position: int
    stored: int
    may_be_cut: bool
    header: bytes
    block: memoryview
    whole: bool = True


@dataclass(frozen=True)
class Broken:
    """A place in an archive that cannot be read as a record. The fields are those of `Record`."""

    position: int
    stored: int
    reason: str


class RecordCutter:
    """Cuts the content of one archive into records. kind: WARC or ARC. longest: the longest permitted block. look:
    returns some bytes at a content offset, or None if the file ends before it; None if the file is compressed.
    """

    def __init__(self, window: Window, kind: str, longest: int, look: Look | None = None) -> None:
        self._window, self._longest, self._kind, self._look = window, longest, kind, look
        self._first_line, self._line, self._separator = FIRST_LINES[kind], LINES[kind], SEPARATORS[kind]

    def records(self) -> Iterator[Record | Broken]:
        """Yield the records, and the broken places between them, in order."""
        window = self._window
        while True:
            while (record := self._lone_record()) is not None:
                yield record
            unfinished: Broken | None = None
            while window.pass_line_ends():
                unfinished = None
                found = self._record()
                if isinstance(found, Broken) and not window.left and not window.fill(1):
                    unfinished = found
                    break
                yield found
                while (record := self._lone_record()) is not None:
                    yield record
            damage, window.damage = window.damage, None
            if damage is not None:
                # a record that a damaged member cuts off, and this member, are one broken record
                place = unfinished or Broken(window.position, damage.stored, "")
                yield Broken(place.position, place.stored, damage.reason)
            elif unfinished is not None:
                yield unfinished
            if damage is None:
                return

    def _lone_record(self) -> Record | None:
        """Return the record in the next member if it holds a record alone, as usual. Else leave it to `_record`."""
        if self._kind == ARC or (piece := self._window.next_member()) is None:
            return None
        data = piece.data
        end = header_end(data, 0, HEADER_BYTES) if data.endswith(LONE_END) and WARC_LINE.match(data) else None
        if end is None:
            return None
        header = bytes(memoryview(data)[: end[0]])
        length = len(data) - end[1] - len(LONE_END)
        if self._length(header) != length or length > self._longest:
            return None
        position = self._window.position
        self._window.at = len(data)
        return Record(position, piece.stored, True, header, memoryview(data)[end[1] : end[1] + length])

    def _record(self) -> Record | Broken:
        """Read what begins at the current place, and move behind it."""
        window = self._window
        place = window.position, window.stored()
        cut = window.may_be_cut()
        line = self._find_line(cut)
        if line is None:
            window.advance(1)
            window.find(self._first_line)
            return Broken(*place, "no record begins here")
        header = self._header()
        if header is None:
            ended = window.left < HEADER_BYTES
            window.advance(line.end() - line.start())
            window.find(self._first_line)
            reason = FILE_ENDS if ended and not window.left else f"its header does not end within {HEADER_BYTES} bytes"
            return Broken(*place, reason)
        header, size = header
        length = self._length(header)
        window.advance(size)
        if isinstance(length, str):
            window.find(self._first_line)
            return Broken(*place, length)
        if length > self._longest:
            return self._long_record(place, cut, header, length)
        ended = not window.fill(length + SEPARATOR_BYTES) and window.left < length
        inside = window.record_inside(window.position + 1, window.position + length, self._line)
        if inside is None and not ended and self._is_followed_well(length):
            block = _block(window.data, window.at, length)
            window.advance(length)
            return Record(*place, cut, header, block)
        window.find(self._first_line)
        if ended and not window.left:
            return Broken(*place, FILE_ENDS)
        return Broken(*place, _wrong_length(length))

    def _find_line(self, begins: bool) -> re.Match[bytes] | None:
        """Match a record's first line at the current place. begins: True if a member may begin here; then the line
        before need not have an end.
        """
        window = self._window
        first_line = self._line if begins else self._first_line
        found = first_line.match(window.data, window.at)
        if found is None and window.left < LONGEST_LINE:
            window.fill(LONGEST_LINE)
            found = first_line.match(window.data, window.at)
        return found

    def _header(self) -> tuple[bytes, int] | None:
        """Return the header at the current place, and its size with the line ends; None if it does not end."""
        window, end_of = self._window, line_end if self._kind == ARC else header_end
        end = end_of(window.data, window.at, window.at + HEADER_BYTES)
        if end is None and window.left < HEADER_BYTES:
            window.fill(HEADER_BYTES)
            end = end_of(window.data, window.at, window.at + HEADER_BYTES)
        return None if end is None else (bytes(window.data[window.at : end[0]]), end[1] - window.at)

    def _length(self, header: bytes) -> int | str:
        """Return the length of the block, or why it is not known."""
        if self._kind == WARC:
            return content_length(header)
        line = ARC_LINE.match(header + b"\n")
        return as_length(line["length"]) if line else NO_LENGTH

    def _is_followed_well(self, length: int) -> bool:
        """Return True if, after `length` bytes, there are line ends, another record, a new member or the end."""
        window = self._window
        if window.left == length or self._separator.match(window.data, window.at + length):
            return True
        if window.begins_member(length):
            return True
        window.fill(length + LONGEST_LINE)
        return self._may_follow(bytes(window.data[window.at + length : window.at + length + LONGEST_LINE]))

    def _may_follow(self, following: bytes) -> bool:
        """Return True if these bytes may come behind a block: line ends, and then another record or nothing."""
        rest = following.lstrip(b"\r\n")
        return self._separator.match(following) is not None or not rest or self._line.match(rest) is not None

    def _long_record(self, place: tuple[int, int], cut: bool, header: bytes, length: int) -> Record | Broken:
        window = self._window
        if self._look is not None:
            following = self._look(window.position + length)
            if following is None or not self._may_follow(following):
                window.find(self._first_line)
                return Broken(*place, _wrong_length(length) if window.left else FILE_ENDS)
        window.fill(BEGINNING_BYTES)
        beginning = memoryview(window.data[window.at : window.at + BEGINNING_BYTES])
        if window.pass_over(length, self._line):
            if self._is_followed_well(0):
                return Record(*place, cut, header, beginning, whole=False)
            window.find(self._first_line)
            return Broken(*place, f"{_wrong_length(length)}; other records may be lost in these bytes")
        return Broken(*place, _wrong_length(length) if window.left else f"{FILE_ENDS}, which states {length} bytes")


def _wrong_length(length: int) -> str:
    return f"its length, {length} bytes, is wrong: no record follows its block, or others begin inside it"


def _block(data: Content, start: int, length: int) -> memoryview:
    """Return a part of a window: a view if it is most of the window, else a copy, so that it does not hold the rest."""
    view = memoryview(data)[start : start + length]
    return view if 2 * length >= len(data) else memoryview(bytes(view))


def records_of(
    context: ReadContext, path: str, kind: str, *, start: int = 0, stop: int | None = None, origin: int = 0
) -> Iterator[Record | Broken]:
    """Yield the records of an archive that begin in bytes [start, stop) of the stored file, and report progress. At
    both places, records must begin. origin: the offset of byte `start` in the uncompressed file. Raises
    UnreadableError.
    """

    def report(position: int) -> None:
        context.task.report(context.counts.counters[IN], position - origin)

    def look(position: int) -> bytes | None:
        place = file.tell()
        exists = position <= file.seek(0, os.SEEK_END)
        file.seek(position if exists else place)
        found = file.read(LONGEST_LINE) if exists else None
        file.seek(place)
        return found

    with context.inputs.open(path) as file:
        plain = compression_of(path) is None
        window = Window(members(file, path, start), origin, plain, report)
        cutter = RecordCutter(window, kind, context.config.max_document_bytes, look if plain else None)
        for found in cutter.records():
            if stop is not None and found.stored >= stop:
                return
            yield found
