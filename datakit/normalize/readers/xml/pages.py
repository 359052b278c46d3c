"""Cuts a MediaWiki dump into its pages, by searching for the tags `<page>` and `</page>`.

In a dump, `<` is always escaped in titles and texts, so the tags occur nowhere else. Each page is therefore found
without parsing what comes before it: a damaged page costs one page, and each page has an offset. The beginning of the
file, up to its first page, must name the root element `mediawiki`, must be UTF-8, and must not declare a document type:
dumps need none, and the entities that it could define could expand without limit or name other files.

Memory: one page of permitted length, plus the data of one read. Cost: one search for the tags, at several GB/s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from datakit.errors import UnreadableError
from datakit.normalize.readers.streams import DamagedError
from datakit.printable import one_line

PROLOG_BYTES = 1 << 20  # what precedes the first page: the root element and the description of the site, about 10 kB
OPEN, CLOSE, END = b"<page>", b"</page>", b"</mediawiki>"
_LONGEST_TAG = len(END)
_MARK = re.compile(rb"<page>|</page>|</mediawiki>")
_BLANK = re.compile(rb"[ \t\r\n]+")
_ENCODING = re.compile(rb"""<\?xml[^>]*?\bencoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")
_ROOT = re.compile(rb"<mediawiki[\s>]")


class PageCutter:
    """Yields pages as pairs (offset of the page, bytes). `position` is the offset of the next byte to examine.

    limit: the maximum length of a page in bytes. bad: called with the offset and the reason for everything that is not
    a page of permitted length.
    """

    def __init__(self, path: str, limit: int, bad: Callable[[int, str], None]) -> None:
        self.position: int = 0
        self._path, self._limit, self._bad = path, limit, bad
        self._buffer = bytearray()
        self._started = self._discarding = self._ended = self._followed = False
        self._searched = 0  # no tag begins before this place in the buffer, other than the first

    def pages(self, parts: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield every page of the stream. Raises UnreadableError, and DamagedError if the dump is not closed."""
        for part in parts:
            self._buffer += part
            yield from self._complete()
        if not self._started and _MARK.search(self._buffer) is None:
            _check_prolog(self._path, bytes(self._buffer))
        if not self._ended:
            raise DamagedError("the file ends before the end of the dump, </mediawiki>")

    def _complete(self) -> Iterator[tuple[int, bytes]]:
        """Yield the buffered pages; report whatever else is complete."""
        while True:
            if not self._started and not self._start():
                return
            if self._ended:
                self._check_ended()
                return
            if self._discarding and not self._discard():
                return
            self._drop_blank()
            if len(self._buffer) < _LONGEST_TAG:
                return
            if self._buffer.startswith(END):
                self._drop(len(END))
                self._ended = True
            elif not self._buffer.startswith(OPEN):
                self._bad(self.position, "something other than a page")
                self._discarding = True
            elif (page := self._page()) is None:
                return
            elif page[1]:
                yield page

    def _check_ended(self) -> None:
        """Report the first data after the end of the dump; drop what is buffered."""
        self._drop_blank()
        if self._buffer and not self._followed:
            self._bad(self.position, "data after </mediawiki>")
            self._followed = True
        self._drop(len(self._buffer))

    def _start(self) -> bool:
        """Pass over what precedes the first page; return True if all of it has arrived."""
        found = _MARK.search(self._buffer)
        if found is None and len(self._buffer) <= PROLOG_BYTES:
            return False
        _check_prolog(self._path, bytes(self._buffer[: found.start() if found else PROLOG_BYTES]))
        if found is None:
            raise UnreadableError(
                f"{one_line(self._path)} has no page in its first {PROLOG_BYTES} bytes, so it is not a dump of pages; "
                "exclude it, or set the source's `format`"
            )
        self._drop(found.start())
        self._started = True
        return True

    def _page(self) -> tuple[int, bytes] | None:
        """Return the page at the start of the buffer, an empty one if it is unusable, or None if it is incomplete."""
        found = _MARK.search(self._buffer, max(len(OPEN), self._searched))
        end = len(self._buffer) if found is None else found.end()
        if end > self._limit:
            self._bad(self.position, f"longer than max_document_bytes ({self._limit})")
            self._discarding = True
            self._drop(len(OPEN))
            return self.position, b""
        if found is None:
            self._searched = max(len(OPEN), len(self._buffer) - _LONGEST_TAG)
            return None
        if found.group() != CLOSE:
            self._bad(self.position, "the page has no end (</page>)")
            self._drop(found.start())
            return self.position, b""
        offset, page = self.position, bytes(memoryview(self._buffer)[:end])
        self._drop(end)
        return offset, page

    def _discard(self) -> bool:
        """Drop everything up to the next page; return True if it has been found."""
        found = _MARK.search(self._buffer)
        if found is None:
            self._drop(max(0, len(self._buffer) - _LONGEST_TAG + 1))
            return False
        self._drop(found.end() if found.group() == CLOSE else found.start())
        self._discarding = False
        return True

    def _drop_blank(self) -> None:
        if blank := _BLANK.match(self._buffer):
            self._drop(blank.end())

    def _drop(self, length: int) -> None:
        del self._buffer[:length]
        self.position += length
        self._searched = 0


def _check_prolog(path: str, prolog: bytes) -> None:
    """Raise UnreadableError unless this is the beginning of a dump."""
    if b"<!DOCTYPE" in prolog or b"<!ENTITY" in prolog:
        raise UnreadableError(
            f"{one_line(path)} declares a document type (<!DOCTYPE>), which no MediaWiki dump does, and which could "
            "make a small file expand without limit; exclude it"
        )
    encoding = _ENCODING.search(prolog)
    if encoding is not None and encoding.group(1).lower() not in (b"utf-8", b"utf8"):
        raise UnreadableError(f"{one_line(path)} is not in UTF-8, judging by its XML declaration; convert it")
    if _ROOT.search(prolog) is None:
        raise UnreadableError(
            f"{one_line(path)} is not a MediaWiki dump: no element <mediawiki> precedes its first page; exclude it, or "
            "correct the source's `format`"
        )
