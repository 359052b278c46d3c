"""Requests a file, or a range of its bytes, and follows redirects to where the file is stored.

Every answer is checked before its body is read: the status, the range, the length, the version (ETag or
Last-Modified) and, by a callback, what a particular kind of server states beyond that. A server's statement that
differs from what was requested or listed is never repaired.

The place where the file was found is requested directly for further ranges, as a store counts each redirect. If this
place refuses a later request, because its signature has expired, for example, the redirects are followed again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urljoin

import httpx2

from datakit.download.web.addresses import Borders
from datakit.download.web.client import client_for
from datakit.download.web.patience import BUSY, REAL, Clock, Pace, PassingError, asked_wait
from datakit.errors import ChangedInputError, DatakitError, RootError, StorageError
from datakit.signed_urls import without_query

MOST_REDIRECTS = 10
RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
EMPTY_RANGE = re.compile(r"bytes \*/(\d+)")
PLAIN_CODINGS = ("", "identity")
TURNED_AWAY = (401, 403, 404, 410)
Refuse = Callable[[int, Mapping[str, str]], DatakitError]


class NoRangesError(Exception):
    """The server does not answer with the range that was requested."""


@dataclass(frozen=True)
class RemoteFile:
    """A file as it was listed. url: where it is requested, with its query string. name: its URL for messages. headers:
    sent to the home server only. etag, last_modified: the version, as the server wrote it; "" if unknown. content: the
    hash of the file, as `algorithm:hex`; "" if unknown. size: None while it is being listed.
    """

    url: str = field(repr=False)
    name: str
    borders: Borders
    size: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    etag: str = ""
    last_modified: str = ""
    content: str = ""
    refuse: Refuse | None = None
    check_first: Callable[[Mapping[str, str]], None] = lambda headers: None  # gets the headers of the first answer

    def changed(self, what: str) -> ChangedInputError:
        """Return the error for a file that is not as it was listed."""
        return ChangedInputError(f"{self.name}: {what}; run again to list the source again")


@dataclass(frozen=True)
class Answer:
    """An answer whose body has not been read. start, stop: the bytes of the file that it holds; None if unknown. total:
    the size of the file according to the server; None if it does not say.
    """

    response: httpx2.Response
    start: int
    stop: int | None
    total: int | None

    @property
    def coding(self) -> str:
        """The content coding of the body; "" if it has none."""
        coding = self.response.headers.get("content-encoding", "").strip().lower()
        return "" if coding in PLAIN_CODINGS else coding

    def body(self, clock: Clock) -> Iterator[bytes]:
        """Yield the body as it arrives, decoded if it has a coding. Raises PassingError if the connection breaks or is
        too slow.
        """
        pace = Pace(clock)
        try:
            for data in self.response.iter_bytes() if self.coding else self.response.iter_raw():
                pace.received(len(data))
                yield data
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise PassingError(described(error)) from error


class Requests:
    """Requests ranges of one file. It may be used by several threads."""

    def __init__(self, file: RemoteFile, clock: Clock = REAL) -> None:
        self.file, self.clock = file, clock
        self._found = ""  # where the redirects ended

    @contextmanager
    def get(self, start: int = 0, stop: int | None = None, ranged: bool = True) -> Iterator[Answer]:
        """Request the bytes [start, stop) or, with `ranged=False`, the whole file. Raises PassingError, NoRangesError
        or a DatakitError.
        """
        headers = dict(self.file.headers)
        if ranged:
            headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        response = self._followed(headers)
        try:
            yield self._checked(response, start, ranged)
        finally:
            response.close()

    def _followed(self, headers: Mapping[str, str]) -> httpx2.Response:
        url, first = self._found or self.file.url, not self._found
        for _ in range(MOST_REDIRECTS + 1):
            response = self._send(url, headers)
            try:
                if first and (response.status_code < 300 or response.has_redirect_location):
                    self.file.check_first(response.headers)
                if not response.has_redirect_location:
                    self._require_success(response, url)
                    self._found = url if url != self.file.url else ""
                    return response
                url, first = urljoin(url, response.headers["location"]), False
                self.file.borders.check(url)
            except BaseException:
                response.close()
                raise
            response.close()
        raise StorageError(f"{self.file.name}: the server redirected more than {MOST_REDIRECTS} times; check the URL")

    def _send(self, url: str, headers: Mapping[str, str]) -> httpx2.Response:
        client = client_for(self.file.borders)
        try:
            return client.send(client.build_request("GET", url, headers=headers), stream=True)
        except httpx2.TransportError as error:
            self._found = ""
            raise PassingError(described(error)) from error
        except httpx2.InvalidURL as error:
            raise RootError(f"{self.file.name}: {without_query(url)} is not a valid URL ({error})") from error

    def _require_success(self, response: httpx2.Response, url: str) -> None:
        status = response.status_code
        if status in (200, 206, 416):
            return
        self._found = ""
        if status in BUSY:
            wait = asked_wait(response.headers.get("retry-after"), self.clock)
            raise PassingError(f"the server answered {status}", wait)
        if url != self.file.url and status in TURNED_AWAY:
            raise PassingError(f"the place to which the server redirected answered {status}")
        if url == self.file.url and self.file.refuse is not None:
            raise self.file.refuse(status, response.headers)
        raise StorageError(f"{self.file.name}: the server answered {status}; check the URL")

    def _checked(self, response: httpx2.Response, start: int, ranged: bool) -> Answer:
        headers = response.headers
        if response.status_code == 416:
            found = EMPTY_RANGE.fullmatch(headers.get("content-range", ""))
            if found is None or start < int(found[1]):
                raise NoRangesError
            return Answer(response, start, start, int(found[1]))
        self._require_version(headers)
        if response.status_code == 200:
            length = headers.get("content-length", "")
            plain = headers.get("content-encoding", "").strip().lower() in PLAIN_CODINGS
            total = int(length) if length.isdecimal() and plain else None
            return Answer(response, 0, total, total)
        found = RANGE.fullmatch(headers.get("content-range", ""))
        if not ranged or found is None or headers.get("content-encoding", "").lower() not in PLAIN_CODINGS:
            raise NoRangesError
        if int(found[1]) != start:
            raise PassingError(f"the server sent the bytes from {found[1]} on instead of those from {start} on")
        return Answer(response, start, int(found[2]) + 1, None if found[3] == "*" else int(found[3]))

    def _require_version(self, headers: Mapping[str, str]) -> None:
        for name, listed in (("etag", self.file.etag), ("last-modified", self.file.last_modified)):
            now = headers.get(name, "")
            if listed and now != listed:
                stated = f"now {now}" if now else "and now the server states none"
                raise self.file.changed(f"it has changed since it was listed ({name} {listed}, {stated})")


def described(error: Exception) -> str:
    """Return a description of an error of the HTTP client."""
    text = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
