"""Decides which records of an archive become documents, and takes the page and its facts from such a record.

A record becomes a document if

- its type is `response`, `resource` or `conversion` (a text in a WET file), it is not one segment of several, and its
  URL does not begin with `metadata:`, as those of the logs that Wget writes into archives do;
- it is a response to an HTTP request: its status is 200 to 299, except 206, which stands for a part of a page;
- its media type is `text/html`, `application/xhtml+xml` or `text/plain`. The type is the one that the archive's maker
  has recognized (`WARC-Identified-Payload-Type`) or, without one, the one that the server or the record states.

All other records are counted under the first of these that does not apply. A record with a block digest
(`WARC-Block-Digest`) whose block has another digest is broken. Payload digests are not compared, because programs
disagree about what they cover (the payload with or without its transfer and content encodings). FastWARC parses the
header lines.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple

from datakit.normalize.formats import ARC
from datakit.normalize.readers.web.digests import check_digest
from datakit.normalize.readers.web.errors import BrokenRecordError, LeftOutError
from datakit.normalize.readers.web.headers import fields_of, first_values, header_end, parsed
from datakit.normalize.readers.web.members import ARC_LINE
from datakit.normalize.readers.web.records import Record
from datakit.normalize.record_counts import OTHER_MEDIA_TYPE, OTHER_RECORD_TYPE, OTHER_STATUS

DOCUMENT_TYPES = ("response", "resource", "conversion")
HTML_TYPES = ("text/html", "application/xhtml+xml")
MEDIA_TYPES = (*HTML_TYPES, "text/plain")
PARTIAL_CONTENT = 206
HTTP_LINE = re.compile(rb"HTTP/\d[^\n]*\n")
USUAL_HEADER_BYTES = 4 << 10
HTTP_HEADER_BYTES = 256 << 10  # some servers send many cookies
# Begins with a line end, as `headers.LENGTH` does
WARC_TYPE = re.compile(rb"(?i)\nwarc-type[ \t]*:[ \t]*([a-z]+)")
PARAMETER = re.compile(r";\s*charset\s*=\s*[\"']?([^\s\"';]+)", re.I)
ENCODINGS = ("content-encoding", "transfer-encoding")


class Page(NamedTuple):
    """A page as it was archived. payload: what the server sent, still encoded. encodings: the transfer encodings and
    the content encodings, in the order in which they were applied. charset: the one that the server states.
    """

    payload: memoryview
    encodings: tuple[str, ...]
    charset: str | None
    kind: str
    record_id: str | None
    url: str | None
    date: str | None
    media_type: str
    language: str | None
    status: int | None
    truncated: str | None


def may_be_document(record: Record, kind: str) -> bool:
    """Return False if the record's type alone shows that it becomes no document. kind: the archive's format."""
    if kind == ARC:
        return not record.header.startswith(b"filedesc:")
    found = WARC_TYPE.search(record.header)
    return found is None or found[1].lower().decode() in DOCUMENT_TYPES


def page_of(record: Record, kind: str) -> Page:
    """Return the page in a record. kind: the archive's format. Raises LeftOutError and BrokenRecordError."""
    return _arc_page(record) if kind == ARC else _warc_page(record)


def _warc_page(record: Record) -> Page:
    headers = first_values(fields_of(parsed(record.header)))
    type_of_record, content_type = headers.get("warc-type", "").strip().lower(), headers.get("content-type", "")
    if type_of_record not in DOCUMENT_TYPES or headers.get("warc-segment-number"):
        raise LeftOutError(OTHER_RECORD_TYPE)
    url = _unbracketed(headers.get("warc-target-uri"))
    if (url or "").startswith("metadata:"):
        raise LeftOutError(OTHER_RECORD_TYPE)
    payload, http = record.block, None
    if type_of_record == "response" and content_type.lower().startswith("application/http"):
        http, payload = _http(record.block)
        content_type = http.values.get("content-type") or ""
    _check_status(http)
    media_type = _media_type(headers.get("warc-identified-payload-type") or content_type)
    _check_media_type(media_type)
    if record.whole:
        check_digest(headers.get("warc-block-digest"), record.block)
    language = headers.get("warc-identified-content-language") or (
        http.values.get("content-language") if http else None
    )
    return Page(
        payload, _encodings(http) if http else (), _charset(content_type), type_of_record,
        _unbracketed(headers.get("warc-record-id")), url, headers.get("warc-date"), media_type,
        language, http.status if http else None, headers.get("warc-truncated"),
    )  # fmt: skip


def _arc_page(record: Record) -> Page:
    line = ARC_LINE.match(record.header + b"\n")
    if line is None or line["url"].startswith(b"filedesc:"):
        raise LeftOutError(OTHER_RECORD_TYPE)
    payload, http, content_type = record.block, None, line["mime"].decode("latin-1")
    if HTTP_LINE.match(record.block):
        http, payload = _http(record.block)
        content_type = http.values.get("content-type") or content_type
    _check_status(http)
    media_type = _media_type(content_type)
    _check_media_type(media_type)
    status, language = (http.status, http.values.get("content-language")) if http else (None, None)
    url, date = line["url"].decode("utf-8", "replace"), _iso_date(line["date"].decode())
    encodings = _encodings(http) if http else ()
    return Page(
        payload, encodings, _charset(content_type), "response", None, url, date, media_type, language, status, None
    )


class _Http(NamedTuple):
    """The header of an HTTP response: its fields in order, the first value of each name, and the status."""

    fields: list[tuple[str, str]]
    values: dict[str, str]
    status: int | None


def _http(block: memoryview) -> tuple[_Http, memoryview]:
    """Return the header and the payload of an HTTP response. Raises BrokenRecordError."""
    if not HTTP_LINE.match(block):
        raise BrokenRecordError("its HTTP response has no status line")
    head, end = b"", None
    for size in (USUAL_HEADER_BYTES, HTTP_HEADER_BYTES):
        head = bytes(block[:size])
        if (end := header_end(head, 0, size)) is not None:
            break
    if end is None and len(block) > HTTP_HEADER_BYTES:
        raise BrokenRecordError(f"its HTTP header does not end within {HTTP_HEADER_BYTES} bytes")
    header_stop, start = end or (len(block), len(block))
    headers = parsed(head[:header_stop])
    fields = fields_of(headers)
    return _Http(fields, first_values(fields), headers.status_code), block[start:]


def _check_status(http: _Http | None) -> None:
    if http and (http.status is None or not 200 <= http.status < 300 or http.status == PARTIAL_CONTENT):
        raise LeftOutError(OTHER_STATUS)


def _media_type(value: str) -> str:
    return value.partition(";")[0].strip().lower()


def _check_media_type(media_type: str) -> None:
    if media_type not in MEDIA_TYPES:
        raise LeftOutError(OTHER_MEDIA_TYPE)


def _charset(content_type: str) -> str | None:
    found = PARAMETER.search(content_type)
    return found[1] if found else None


def _encodings(http: _Http) -> tuple[str, ...]:
    """Return the content encodings and then the transfer encodings, in lower case."""
    if not any(kind in http.values for kind in ENCODINGS):
        return ()
    values = [value for kind in ENCODINGS for name, value in http.fields if name == kind]
    names = (name.strip().lower() for value in values for name in value.split(","))
    return tuple(name for name in names if name and name != "identity")


def _unbracketed(value: str | None) -> str | None:
    """Return a URI without the angle brackets around it, which some programs also write around the target's URL."""
    return value[1:-1] if value and value.startswith("<") and value.endswith(">") else value


def _iso_date(digits: str) -> str | None:
    """Return an ARC file's date (YYYYMMDDhhmmss) in the form of WARC files, or None if it is none.

    >>> _iso_date("20140216050221"), _iso_date("20140231000000")
    ('2014-02-16T05:02:21Z', None)
    """
    try:
        return datetime.strptime(digits.ljust(14, "0")[:14], "%Y%m%d%H%M%S").strftime("%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return None
