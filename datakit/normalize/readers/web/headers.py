"""Finds where the header of a record or an HTTP response ends, what it says, and how long the block behind it is.

FastWARC parses the fields, in 8 µs.
"""

from __future__ import annotations

import io
import re

from fastwarc.warc import HeaderMap

from datakit.normalize.readers.web.pieces import Content

LINE_END = re.compile(rb"\r?\n")
# Begins with a line end rather than ^: then the search jumps from line end to line end. The first line is no match.
LENGTH = re.compile(rb"(?im)\ncontent-length[ \t]*:[ \t]*([^\r\n]*?)[ \t]*\r?$")
# The same as most programs write it, for a search that takes a third of the time
USUAL_LENGTH, LENGTH_NAME = b"\r\nContent-Length: ", b"content-length"
NUMBER = re.compile(rb"\d{1,18}")
CARRIAGE_RETURN = ord("\r")
NO_LENGTH = "it states no Content-Length"


def header_end(data: Content, start: int, stop: int) -> tuple[int, int] | None:
    r"""Return where the end of a header's last line begins, and where the blank line behind it ends; None if they do
    not both lie in data[start:stop].

    This finds what the pattern `\r?\n\r?\n` would find. A search for the pattern would take several times as long,
    because it would try every byte.

    >>> header_end(b"A: 1\r\nB: 2\r\n\r\ntext", 0, 99), header_end(b"A: 1\n\ntext", 0, 5)
    ((10, 14), None)
    """
    at, size = data.find(b"\n\r\n", start, stop), 3
    bare = data.find(b"\n\n", start, stop if at < 0 else at + 1)
    if bare >= 0:
        at, size = bare, 2
    if at < 0:
        return None
    return at - (at > start and data[at - 1] == CARRIAGE_RETURN), at + size


def line_end(data: Content, start: int, stop: int) -> tuple[int, int] | None:
    """Return where the first line end in data[start:stop] begins and ends, or None if there is none."""
    found = LINE_END.search(data, start, stop)
    return found.span() if found else None


def content_length(header: bytes) -> int | str:
    r"""Return the value of `Content-Length` in the header of a WARC record, or why there is none.

    >>> content_length(b"WARC/1.0\r\nContent-Length: 7\r\nA: 1"), content_length(b"WARC/1.0\ncontent-length:7")
    (7, 7)
    """
    at = header.find(USUAL_LENGTH)
    digits = header[at + len(USUAL_LENGTH) :].partition(b"\r\n")[0]
    if at >= 0 and NUMBER.fullmatch(digits) and header.lower().count(LENGTH_NAME) == 1:
        return int(digits)
    found = list(dict.fromkeys(LENGTH.findall(header)))
    if len(found) > 1:
        return "it states several values of Content-Length"
    return as_length(found[0]) if found else NO_LENGTH


def as_length(digits: bytes) -> int | str:
    """Return a number of bytes, or why it is none."""
    return int(digits) if NUMBER.fullmatch(digits) else "its length is not a number"


def parsed(header: bytes) -> HeaderMap:
    """Parse header lines after a first line. FastWARC wants them to end with CR LF."""
    if header.count(b"\n") != header.count(b"\r\n"):
        header = LINE_END.sub(b"\r\n", header)
    found = HeaderMap()
    found.parse(io.BytesIO(header + b"\r\n\r\n"))
    return found


def fields_of(headers: HeaderMap) -> list[tuple[str, str]]:
    """Return the names, in lower case, and their values. A look-up in FastWARC's map takes 2 µs."""
    return [(name.lower(), value) for name, value in headers.items()]


def first_values(fields: list[tuple[str, str]]) -> dict[str, str]:
    """Return the first value of each name."""
    return dict(reversed(fields))
