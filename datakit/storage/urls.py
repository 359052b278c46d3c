"""Resolves URLs, creates the clients of all stores, and lists and reads files on a disk or in an object store.

URLs are strings: plain paths, `file://` URLs, or URLs with any other protocol that fsspec supports (`s3://`, `gs://`,
...). Local files are accessed directly because, for small files, a call to fsspec's local layer takes longer than the
read itself. Directory listings are never cached (`use_listings_cache=False`), since a stale listing could miss a
finished shard or show a deleted one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO, TypeVar, cast

from datakit.errors import RootError, StorageError
from datakit.regular_files import open_regular, require_regular
from datakit.signed_urls import refuse_user_info, split_query
from datakit.storage.io_errors import read_errors
from datakit.store_access import USUAL, StoreAccess

SPLITTER = "://"
PARALLEL_REQUESTS = 8
READ_AHEAD_BYTES = 8 << 20  # how much a reader of an object fetches with each request, beyond what was asked for
# The keys of the time of a file's last write in S3, GCS, Azure and fsspec's memory file system, in this order.
TIME_KEYS = ("LastModified", "mtime", "last_modified", "created")
CHECKSUM_KEYS = ("ETag", "etag", "md5Hash", "sha256", "blob_id")
T = TypeVar("T")


@dataclass(frozen=True)
class FileInfo:
    """A file in a listing. `url` is absolute, `path` is relative to the listed directory, and `size` is in bytes.

    special: the kind of a local entry that is not a regular file (such as "a named pipe"); empty for any other entry.
    """

    url: str
    path: str
    size: int
    checksum: str | None = None  # the store's own checksum (such as an ETag), if the store has one
    special: str = ""


def is_local(url: str) -> bool:
    """Return True if `url` is a plain path or a `file://` URL."""
    return SPLITTER not in url or url.startswith("file://")


def protocol(url: str) -> str:
    """Return the protocol (`s3`, `gs`, ...); `file` for a local URL."""
    return "file" if is_local(url) else url.partition(SPLITTER)[0]


def local_path(url: str) -> str:
    """Return the absolute path of a local URL."""
    return os.path.abspath(os.path.expanduser(url.removeprefix("file://")))


def absolute(url: str) -> str:
    """Return `url` in a form that is independent of the working directory and has no trailing slash. Raises RootError
    for a URL with a user name or a password.
    """
    if is_local(url):
        return local_path(url)
    refuse_user_info(url)
    return url.rstrip("/")


def join(base: str, *parts: str) -> str:
    """Return `base/part/part`; a leading `../` in a part goes up one directory.

    >>> join("s3://bucket/a/b", "../c/manifest.json")
    's3://bucket/a/c/manifest.json'
    """
    scheme, splitter, rest = base.partition(SPLITTER) if SPLITTER in base else ("", "", base)
    return scheme + splitter + os.path.normpath("/".join([rest.rstrip("/"), *parts]))


def child(base: str, path: str) -> str:
    """Return the URL of the file at `path` below `base`. Unlike `join`, this keeps every character of the path, because
    `a//b` and `a/b` are the keys of different objects, and so are `a/../b` and `b`.

    >>> child("s3://bucket/a", "b//../c")
    's3://bucket/a/b//../c'
    """
    return f"{base.rstrip('/')}/{path}"


def is_hidden(path: str) -> bool:
    """Return True if a component of a relative path starts with a dot and is neither `.` nor `..`."""
    return any(part.startswith(".") and part not in (".", "..") for part in path.split("/"))


def is_below(path: str) -> bool:
    """Return True if a relative path has no NUL and no component that is empty, `.` or `..`.

    >>> [is_below(path) for path in ("a/b", "/a", "a/../b", "a//b", "")]
    [True, False, False, False, False]
    """
    return "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


def parent(url: str) -> str:
    """Return the directory that contains `url`."""
    return url.rstrip("/").rpartition("/")[0]


def name(url: str) -> str:
    """Return the last component of `url`."""
    return url.rstrip("/").rpartition("/")[2]


def relative(url: str, base: str) -> str:
    """Return the path from directory `base` to `url`. Raises StorageError if they are on different stores."""
    here, there = base.partition(SPLITTER), url.partition(SPLITTER)
    if here[0] != there[0] and (here[1] or there[1]):
        raise StorageError(f"{url} and {base} are on different stores; there is no relative path between them")
    return os.path.relpath(url, base) if not here[1] else os.path.relpath(there[2], here[2])


def filesystem(url: str, access: StoreAccess = USUAL) -> tuple[Any, str]:
    """Return the fsspec file system of a remote `url`, and the path of `url` in it. Credentials and endpoints come from
    the environment (`AWS_ENDPOINT_URL`, ...), never from the URL, so that no manifest contains them. access: the
    settings of a source, which take precedence.
    """
    refuse_user_info(url)
    import fsspec  # importing it takes 60 ms, and no local run needs it

    scheme = protocol(url)
    if scheme.startswith("git+"):
        raise RootError(
            f"{url} is a Git repository, which can only be a source of a recipe; write it into one, and run "
            "`datakit run RECIPE --until normalize`"
        )
    # a signed URL is valid only exactly as written, so aiohttp must not change its percent-encoding
    as_written = {"encoded": True} if split_query(url)[1] else {}
    try:
        file_system = fsspec.filesystem(scheme, use_listings_cache=False, **as_written, **access.options(scheme))
    except ImportError as error:
        extra = {"s3": "s3", "gs": "gcs", "hf": "hf"}.get(scheme)
        advice = f"run pip install '.[{extra}]' in datakit's checkout" if extra else str(error)
        raise RootError(f"{url}: no client for {scheme}:// is installed; {advice}") from error
    except ValueError as error:
        raise RootError(f"{url}: unknown protocol {scheme}://; use a path, file://, s3:// or gs://") from error
    return file_system, cast(str, file_system._strip_protocol(url))


def exists(url: str) -> bool:
    """Return True if a file exists. In an object store, this takes one request. Raises StorageError if the store gives
    no clear answer.
    """
    if is_local(url):
        return os.path.exists(local_path(url))
    with read_errors(url):
        file_system, path = filesystem(url)
        return bool(file_system.exists(path))


def size(url: str) -> int:
    """Return the size of a file in bytes. Raises UnreadableError for a named pipe, a socket or a device; can also raise
    NotFoundError or StorageError.
    """
    with read_errors(url):
        if is_local(url):
            status = os.stat(local_path(url))
            require_regular(local_path(url), status)
            return status.st_size
        file_system, path = filesystem(url)
        return int(file_system.info(path)["size"])


def open_read(url: str) -> BinaryIO:
    """Open a file; return a binary, seekable reader. Raises NotFoundError, StorageError or UnreadableError."""
    with read_errors(url):
        if is_local(url):
            return open_regular(local_path(url))
        file_system, path = filesystem(url)
        return cast(BinaryIO, file_system.open(path, "rb", cache_type="readahead", block_size=READ_AHEAD_BYTES))


def read_bytes(url: str) -> bytes:
    """Read a whole file in one request. Raises NotFoundError, StorageError."""
    return read_range(url, 0, None)


def read_range(url: str, start: int, stop: int | None) -> bytes:
    """Read bytes [start, stop) of a file in one request. If `stop` is None or beyond the end of the file, the range
    ends at the end of the file. Raises NotFoundError, StorageError.
    """
    if stop is not None and stop <= start:
        return b""
    with read_errors(url):
        if is_local(url):
            with open_regular(local_path(url)) as file:
                file.seek(start)
                return file.read() if stop is None else file.read(stop - start)
        file_system, path = filesystem(url)
        try:
            return cast(bytes, file_system.cat_file(path, start=start, end=stop))
        except OSError as error:
            if "range" in str(error).lower() and "satisfiable" in str(error).lower():
                return b""  # an object store's answer (416) to a range that starts at or after the end
            raise


def fetch_ahead(fetch: Callable[[str], T], places: Sequence[str], at_once: int = PARALLEL_REQUESTS) -> Iterator[T]:
    """Yield `fetch(place)` for each place in order. Places in an object store are fetched ahead, with `at_once` calls
    in parallel.
    """
    if not places or is_local(places[0]):
        yield from map(fetch, places)
        return
    with ThreadPoolExecutor(at_once) as pool:
        for start in range(0, len(places), 2 * at_once):
            yield from pool.map(fetch, places[start : start + 2 * at_once])


def listing(url: str) -> list[FileInfo]:
    """Return the files at any depth below directory `url`, sorted by path. The list is empty if the directory does not
    exist. Names that start with a dot (temporary files, editor backups) are skipped at every level.
    """
    with read_errors(url):
        found = list(_local_listing(local_path(url)) if is_local(url) else _visible_objects(url))
    return sorted(found, key=lambda info: info.path)


def _visible_objects(url: str) -> Iterator[FileInfo]:
    return (info for info in _remote_listing(url) if not is_hidden(info.path))


def objects(url: str) -> list[FileInfo]:
    """Return all objects below the remote directory `url`, including hidden ones, with their keys unchanged. Empty
    objects whose keys end with a slash are left out: they only mark folders.
    """
    with read_errors(url):
        return [info for info in _remote_listing(url) if info.size or not info.path.endswith("/")]


def _local_listing(root: str) -> Iterator[FileInfo]:
    for folder, folders, files in os.walk(root, onerror=_raise_unless_gone):
        folders[:] = [entry for entry in folders if not entry.startswith(".")]
        here = os.path.join(folder, "")
        # relpath is slow, so call it once per directory instead of once per file.
        below = "" if folder == root else os.path.relpath(folder, root) + "/"
        for entry in files:
            if not entry.startswith("."):
                path = here + entry
                with suppress(FileNotFoundError):  # the file was removed after the directory was read
                    yield FileInfo(path, below + entry, os.stat(path).st_size)


def _raise_unless_gone(error: OSError) -> None:
    """Raise `error` unless it states that the directory has disappeared: an unreadable directory must not count as
    empty.
    """
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _remote_listing(url: str) -> Iterator[FileInfo]:
    file_system, root = filesystem(url)
    prefix = root.rstrip("/") + "/"
    try:
        entries = file_system.find(root, detail=True)
    except FileNotFoundError:
        return
    for path, info in entries.items():
        relative_path = path.removeprefix(prefix)
        if info["type"] == "file":
            yield FileInfo(child(url, relative_path), relative_path, int(info["size"] or 0), checksum_of(info))


def last_change(url: str) -> float:
    """Return the time of the last write below a remote directory, in seconds since 1970, by the store's clock. Takes
    one listing. Returns 0 if the store does not provide times.
    """
    with read_errors(url):
        file_system, root = filesystem(url)
        try:
            entries = file_system.find(root, detail=True).values()
        except FileNotFoundError:
            return 0.0
    return max(map(_changed, entries), default=0.0)


def dated_objects(url: str) -> Iterator[tuple[FileInfo, float]]:
    """Yield all objects below the remote directory `url`, including hidden ones, each with the time at which it was
    written (0 if the store does not provide times). Takes one listing.
    """
    with read_errors(url):
        file_system, root = filesystem(url)
        try:
            entries = file_system.find(root, detail=True)
        except FileNotFoundError:
            return
    prefix = root.rstrip("/") + "/"
    for path, info in entries.items():
        if info["type"] == "file":
            below = path.removeprefix(prefix)
            yield FileInfo(child(url, below), below, int(info["size"] or 0)), _changed(info)


def modified(url: str) -> float:
    """Return the time at which a file was written, in seconds since 1970. In an object store, this takes one request.
    Raises NotFoundError.
    """
    with read_errors(url):
        if is_local(url):
            return os.path.getmtime(local_path(url))
        file_system, path = filesystem(url)
        return _seconds(file_system.modified(path))


def stamp(url: str) -> tuple[int, float]:
    """Return the size of a file and the time at which it was written (0 if the store provides no times). Takes one
    request. Raises NotFoundError, StorageError or UnreadableError.
    """
    with read_errors(url):
        if is_local(url):
            status = os.stat(local_path(url))
            require_regular(local_path(url), status)
            return status.st_size, status.st_mtime_ns / 1e9
        file_system, path = filesystem(url)
        info = file_system.info(path)
        return int(info["size"]), _changed(info)


def _changed(info: dict[str, Any]) -> float:
    """Return the latest of the times in `info`, a store's description of a file; 0 if the store provides none."""
    return max((_seconds(info[key]) for key in TIME_KEYS if info.get(key)), default=0.0)


def _seconds(moment: datetime | float | str) -> float:
    moment = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return moment.timestamp() if isinstance(moment, datetime) else moment


def checksum_of(info: dict[str, object]) -> str | None:
    """Return the content checksum in `info`, the store's description of a file, or None if there is none."""
    return next((str(info[key]).strip('"') for key in CHECKSUM_KEYS if info.get(key)), None)
