"""Reads the events of a run from its log while the run writes it: each event once, in order.

After a rotation, a new file begins with the run's first event again; events that were read before are recognized by
their number. A new file may already be longer than what was read of the old one. In that case, the next read begins in
the middle of a line, or finds an event whose number does not follow the last one; the new file is then read from its
beginning. The rotated files are read only if the caller asks for them.

A log may be damaged or malicious. A line that is no event (torn by a kill, nested too deeply, longer than LONGEST_LINE)
is skipped and counted, and all later lines are still read.

Cost of each call: one request for the file's size, and reads of what was added; at most PIECE_BYTES and one line are in
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from datakit.engine.observe.event_file import ROTATED
from datakit.errors import NotFoundError
from datakit.storage import urls

PIECE_BYTES = 1 << 20
LONGEST_LINE = 4 << 20
MOST_BYTES_AT_ONCE = 16 << 20  # a call reads no more than this of each file, so a huge file does not block it for long

Event = dict[str, Any]


class EventTail:
    """Follows the log at `url`, a run's `events.jsonl`.

    unreadable: the number of lines skipped in the present file. behind: True if the last call stopped before the end
    of the file; the next call continues there.
    """

    def __init__(self, url: str, rotated: bool = False) -> None:
        """`rotated`: also read the rotated files beside the log."""
        self.url: str = url
        self.unreadable: int = 0
        self.behind: bool = False
        self._rotated, self._finished = rotated, set[str]()
        self._offset, self._number, self._skipping = 0, 0, False

    def read(self) -> Iterator[Event]:
        """Yield the events that were added since the last call. Raises StorageError, UnreadableError."""
        if self._rotated:
            yield from self._earlier_files()
        try:
            size = urls.size(self.url)
            if size < self._offset:
                self._start_again()
            if self._offset and not self._continues(size):
                self._start_again()
            yield from self._events(self.url, size)
        except NotFoundError:  # not written yet, or being rotated at this moment
            return

    def _earlier_files(self) -> Iterator[Event]:
        directory = urls.parent(self.url)
        names = {info.path for info in urls.listing(directory) if ROTATED.fullmatch(info.path)}
        for name in sorted(names - self._finished, key=lambda name: (len(name), name)):
            place, self._offset, self._skipping = urls.join(directory, name), 0, False
            yield from self._events(place, min(urls.size(place), MOST_BYTES_AT_ONCE))
            self._finished.add(name)
            self._start_again()

    def _start_again(self) -> None:
        self._offset, self.unreadable, self._skipping = 0, 0, False

    def _continues(self, size: int) -> bool:
        """Return False if the next line shows that this is another file: it holds no event, or an event whose number
        does not follow the last one.
        """
        piece = urls.read_range(self.url, self._offset, min(size, self._offset + PIECE_BYTES))
        line, end, _ = piece.partition(b"\n")
        if not end or self._skipping:
            return True
        event = parse_event(line)
        return event is not None and event.get("number", self._number + 1) == self._number + 1

    def _events(self, url: str, size: int) -> Iterator[Event]:
        for line in self._lines(url, size):
            event = parse_event(line)
            if event is None:
                self.unreadable += 1
                continue
            number = event.get("number", self._number + 1)
            if number > self._number:
                self._number = number
                yield event

    def _lines(self, url: str, size: int) -> Iterator[bytes]:
        """Yield the complete lines after the offset, with b"" in place of a line that is too long."""
        place, end, held = self._offset, min(size, self._offset + MOST_BYTES_AT_ONCE), b""
        while place < end and (piece := urls.read_range(url, place, min(place + PIECE_BYTES, end))):
            place += len(piece)
            *lines, held = (held + piece).split(b"\n")
            for line in lines:
                self._offset += len(line) + 1
                yield b"" if self._skipping else line
                self._skipping = False
            if len(held) > LONGEST_LINE:
                self._offset, held, self._skipping = self._offset + len(held), b"", True
        self.behind = place < size


def parse_event(line: bytes) -> Event | None:
    """Return the event in a line, or None if the line holds no event."""
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return None
    number, time = event.get("number", 1), event.get("time")
    known = isinstance(number, int) and not isinstance(number, bool) and isinstance(time, int | float)
    return event if known else None
