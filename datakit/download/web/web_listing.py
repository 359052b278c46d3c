"""Lists the files of a source on a web server: a single file, the files of an index page, or those of a list.

Each file is asked for its first byte. The answer states the size of the file, and its version: the ETag or the time of
the last change. If there is no ETag, or only a weak one (`W/"..."`), which two contents may share, the file is read and
hashed; nor do the same second and size prove that a file is unchanged. A file whose size the server does not state, or
that it sends only in a compressed form, is refused, because it could not be verified.

Cost: one request per file, PROBES at a time, and one read of each file without a strong ETag.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from datakit.download.web.addresses import Borders, ServerAddress
from datakit.download.web.content_hash import XXH3, hasher
from datakit.download.web.pages import HTML, MOST_PAGE_BYTES, files_below
from datakit.download.web.patience import ENOUGH, REAL, Clock, PassingError, Patience
from datakit.download.web.requests import Answer, NoRangesError, RemoteFile, Requests
from datakit.download.web.url_list import MOST_LIST_BYTES, paths_of, read_list
from datakit.errors import DatakitError, NotFoundError, RefusedError, RootError, StorageError, UnreadableError
from datakit.signed_urls import split_query, without_query
from datakit.storage import urls
from datakit.storage.io_errors import NEW_SIGNATURE

PROBES = 8
WEAK = "w/"  # begins an ETag that says only that two contents mean the same


@dataclass(frozen=True)
class WebFile:
    """A file on a web server: its path within the source, its URL, its size and its version. etag: "" if there is none,
    or only a weak one. checksum: the ETag without its quotes or, without an ETag, the xxh3-128 of the content.
    """

    path: str
    url: str
    size: int
    checksum: str
    etag: str = ""
    last_modified: str = ""


def remote_file(url: str, private: bool, query: str = "", home: str = "") -> RemoteFile:
    """Return what is known about a file before the first request. home: the source's URL, if `url` is another one."""
    name = without_query(f"{url}{query}")

    def refuse(status: int, _: object) -> DatakitError:
        if status in (404, 410):
            return NotFoundError(f"{name} does not exist (the server answered {status}); check the URL")
        if status in (401, 403):
            advice = NEW_SIGNATURE if query else "datakit sends no password to web servers; copy the file to a disk"
            return RootError(f"access to {name} was denied (the server answered {status}); {advice}")
        return StorageError(f"{name}: the server answered {status}; check the URL")

    borders = Borders(ServerAddress.of(home or url), private)
    return RemoteFile(f"{url}{query}", name, borders, refuse=refuse)


def probe(path: str, remote: RemoteFile, clock: Clock = REAL) -> WebFile:
    """Ask for a file's size and version. Raises UnreadableError if it cannot be verified, or another DatakitError."""
    requests, patience = Requests(remote, clock), Patience(remote.name, clock)
    while True:
        try:
            with requests.get(0, 1) as answer:
                found = _described(path, remote, answer)
            break
        except PassingError as error:
            patience.wait(error)
        except NoRangesError:
            return _probed_whole(path, remote, clock)
    if found.etag:
        return found
    return replace(found, checksum=_hashed(replace(remote, size=found.size, last_modified=found.last_modified), clock))


def _probed_whole(path: str, remote: RemoteFile, clock: Clock) -> WebFile:
    patience = Patience(remote.name, clock)
    while True:
        try:
            with Requests(remote, clock).get(ranged=False) as answer:
                found = _described(path, remote, answer)
            return found if found.etag else replace(found, checksum=_hashed(replace(remote, size=found.size), clock))
        except PassingError as error:
            patience.wait(error)
        except NoRangesError as error:
            raise StorageError(f"{remote.name}: the server answers with ranges that were not requested") from error


def _described(path: str, remote: RemoteFile, answer: Answer) -> WebFile:
    if _is_page(answer):
        raise UnreadableError(
            f"{remote.name} shows an index page, not a file; to list the files below it, end the URL with a slash"
        )
    if answer.coding:
        raise UnreadableError(
            f"{remote.name}: the server sends this file only with Content-Encoding: {answer.coding}, so neither its "
            "size nor its version can be verified; copy it to a disk, or exclude it"
        )
    if answer.total is None:
        raise UnreadableError(f"{remote.name}: the server does not state the file's size; copy the file to a disk")
    headers = answer.response.headers
    etag, changed = headers.get("etag", ""), headers.get("last-modified", "")
    etag = "" if etag.lower().startswith(WEAK) else etag
    url = split_query(remote.url)[0]
    return WebFile(path, url, answer.total, etag.strip('"'), etag, "" if etag else changed)


def _hashed(remote: RemoteFile, clock: Clock) -> str:
    """Read a file and return its xxh3-128. A broken connection is continued if the server answers with ranges."""
    assert remote.size is not None, "the file was probed"
    digest, done, patience = hasher(XXH3, remote.size), 0, Patience(remote.name, clock)
    requests, before = Requests(remote, clock), 0
    while done < remote.size:
        try:
            with requests.get(done, remote.size, ranged=done > 0) as answer:
                if answer.response.status_code == 200 and done:
                    digest, done, before = hasher(XXH3, remote.size), 0, 0
                for data in answer.body(clock):
                    digest.update(data)
                    done += len(data)
                    if done > remote.size:
                        raise remote.changed(f"it is longer than the {remote.size} bytes that the server stated")
            if done < remote.size:
                raise PassingError(f"the connection closed after {done} of {remote.size} bytes")
        except PassingError as error:
            if done - before >= ENOUGH:
                patience.succeeded()
            before = done
            patience.wait(error)
        except NoRangesError:
            digest, done, before = hasher(XXH3, remote.size), 0, 0
            patience.wait(PassingError("the server does not answer with ranges"))
    return digest.hexdigest()


def probe_all(files: dict[str, RemoteFile], clock: Clock = REAL) -> list[WebFile | RefusedError]:
    """Ask for the size and the version of every file, by path. A file that is refused does not hide the others."""

    def one(item: tuple[str, RemoteFile]) -> WebFile | RefusedError:
        try:
            return probe(*item, clock)
        except NotFoundError as error:
            return UnreadableError(str(error))
        except RefusedError as error:
            return error

    with ThreadPoolExecutor(PROBES) as pool:
        return list(pool.map(one, files.items()))


def read_text(url: str, private: bool, most: int, clock: Clock = REAL) -> tuple[str, str, bytes]:
    """Return the URL at which a page or a list was found, its media type, and its bytes, decoded if they have a content
    coding. Raises UnreadableError if there are more than `most` bytes.
    """
    remote, patience = remote_file(url, private), Patience(without_query(url), clock)
    while True:
        try:
            with Requests(remote, clock).get(ranged=False) as answer:
                data, length = [], 0
                for piece in answer.body(clock):
                    data.append(piece)
                    if (length := length + len(piece)) > most:
                        raise UnreadableError(f"{remote.name} has more than {most:,} bytes; list files with `files`")
                kind = _media_type(answer)
                return str(answer.response.url), kind, b"".join(data)
        except PassingError as error:
            patience.wait(error)
        except NoRangesError as error:
            raise StorageError(f"{remote.name}: the server answers with a range that was not requested") from error


def is_page(url: str, private: bool, clock: Clock = REAL) -> bool:
    """Return True if a URL shows an index page: HTML at an address that ends with a slash. Reads no body."""
    remote, patience = remote_file(url, private), Patience(without_query(url), clock)
    while True:
        try:
            with Requests(remote, clock).get(ranged=False) as answer:
                return _is_page(answer)
        except PassingError as error:
            patience.wait(error)
        except NoRangesError:
            return False


def _media_type(answer: Answer) -> str:
    return answer.response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_page(answer: Answer) -> bool:
    return _media_type(answer) in HTML and str(answer.response.url).partition("?")[0].endswith("/")


def page_files(base: str, private: bool, clock: Clock = REAL) -> list[str]:
    """Return the paths of the files below the index page of `base`, a URL without a slash at its end."""
    page = f"{base}/"

    def read(url: str) -> str:
        found, kind, data = read_text(url, private, MOST_PAGE_BYTES, clock)
        if kind not in HTML or found != url:
            what = f"was found at {without_query(found)}" if found != url else f"has the type {kind or 'unknown'}"
            raise UnreadableError(
                f"{without_query(url)} is not an index page: it {what}; list the files with `files`, or name a file"
            )
        return data.decode("utf-8", "replace")

    return files_below(page, read)


def listed_files(base: str, files: Sequence[str] | str, private: bool, clock: Clock = REAL) -> dict[str, str]:
    """Return the path and the URL of each file of a list."""

    def read(place: str) -> bytes:
        if not urls.is_local(place):
            return read_text(place, private, MOST_LIST_BYTES, clock)[2]
        with urls.open_read(place) as file:
            return file.read(MOST_LIST_BYTES + 1)

    place = f"the list {files}" if isinstance(files, str) else "the list `files`"
    return paths_of(base, read_list(files, read), place)
