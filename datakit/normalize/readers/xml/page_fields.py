"""Parses one page of a MediaWiki dump with expat, and picks its latest revision.

Each page is a document of its own for the parser, so it can neither define nor use entities other than the five of XML,
and no external file is ever opened.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat

MOST_DEPTH = 32  # a page of a dump has at most 5 levels of elements
_BUFFER_BYTES = 1 << 20  # so that a text arrives in few pieces


class NotAPageError(ValueError):
    """A page cannot be used. The message gives the reason, but never the page's content."""


@dataclass
class Revision:
    """A revision of a page. text: the wikitext; None if it was deleted."""

    id: int = 0
    timestamp: str = ""
    model: str | None = None
    text: str | None = None


@dataclass
class Page:
    """A page with its latest revision. redirect: the title that a redirect leads to."""

    id: str = ""
    title: str = ""
    namespace: int = 0
    redirect: str | None = None
    revision: Revision = field(default_factory=Revision)
    revisions: int = 0


def parse_page(data: bytes) -> Page:
    """Return the page that an element `page` holds. data: the element, in UTF-8. Raises NotAPageError."""
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.buffer_size = _BUFFER_BYTES
    reader = _PageReader()
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.characters
    parser.StartDoctypeDeclHandler = _refuse_document_type
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise NotAPageError(f"not XML: {expat.ErrorString(error.code)}, {error.offset} bytes into a line") from error
    return reader.finished()


def _refuse_document_type(*_: object) -> None:
    raise NotAPageError("the page declares a document type")


_PAGE, _REVISION = ("page",), ("page", "revision")
_WANTED = {
    *((*_PAGE, name) for name in ("id", "title", "ns")),
    *((*_REVISION, name) for name in ("id", "timestamp", "model", "text")),
}


class _PageReader:
    """Receives the parser's events."""

    def __init__(self) -> None:
        self._path: tuple[str, ...] = ()
        self._pieces: list[str] = []
        self._values: dict[str, str] = {}  # of the page
        self._revision: dict[str, str | None] = {}
        self._page = Page()

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._path = (*self._path, name)
        self._pieces = []
        if len(self._path) > MOST_DEPTH:
            raise NotAPageError(f"nested deeper than {MOST_DEPTH} levels")
        if self._path == _REVISION:
            self._revision = {}
        elif self._path == (*_PAGE, "redirect"):
            self._page.redirect = attributes.get("title", "")
        elif self._path == (*_REVISION, "text") and "deleted" in attributes:
            self._revision["text"] = None

    def characters(self, data: str) -> None:
        if self._path in _WANTED:
            self._pieces.append(data)

    def end(self, name: str) -> None:
        if self._path in _WANTED:
            values = self._values if len(self._path) == 2 else self._revision
            if name not in values:
                values[name] = "".join(self._pieces)
            elif values[name] is not None:
                raise NotAPageError(f"two elements <{name}> where one is allowed")
        elif self._path == _REVISION:
            self._add_revision()
        self._path, self._pieces = self._path[:-1], []

    def _add_revision(self) -> None:
        found, latest = self._revision, self._page.revision
        revision = Revision(_number("revision", found.get("id")), found.get("timestamp") or "", found.get("model"))
        revision.text = found.get("text")
        if not self._page.revisions or (revision.timestamp, revision.id) > (latest.timestamp, latest.id):
            self._page.revision = revision
        self._page.revisions += 1

    def finished(self) -> Page:
        page = self._page
        page.id = str(_number("page", self._values.get("id")))
        if "title" not in self._values:
            raise NotAPageError("the page has no title")
        page.title, page.namespace = self._values["title"], _number("namespace", self._values.get("ns", "0"))
        if not page.revisions:
            raise NotAPageError("the page has no revision")
        return page


def _number(of: str, digits: str | None) -> int:
    if digits is None:
        raise NotAPageError(f"the {of} has no id")
    if not digits.strip().lstrip("-").isdecimal() or len(digits) > 18:
        raise NotAPageError(f"the id of the {of} is not a number")
    return int(digits)
