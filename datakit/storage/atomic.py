"""Creates files that appear complete or not at all, on a disk (by a hard link, or by a rename where links are not
supported) or in an object store, and never overwrites an output.

An output is created only if its name is free. On a disk, a temporary file is written and synced, and then receives its
name from `link`, which fails if the name is taken (`rename` would overwrite the existing file). In an object store, the
file is created by one conditional PUT (`If-None-Match: *`). If the name is taken, the checksums of the existing and the
new file are compared. If they are equal, another process has done the same work. If they differ, the work is not
deterministic, or a library was upgraded; the first file is kept, and DivergentOutputError is raised. Concurrent
drivers, retried tasks and resumed runs therefore need no lock.
Cost: one fsync or one request per file; if the file already exists, also one read of it.
Memory: an upload takes 65 MiB (measured).
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO, cast

import xxhash

from datakit.errors import DivergentOutputError
from datakit.regular_files import open_regular
from datakit.storage import locks, removal, urls
from datakit.storage.io_errors import SPACE, storage_errors, translated

TEMPORARY_PREFIX = ".tmp-"
HASH_CHUNK = 4 << 20
HASH_BUFFER = 256 << 10  # fits into a core's cache
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)  # exFAT and some network mounts lack hard links
# with s3fs's defaults for the first two, an upload would take 500 MB of memory; the third is the limit of S3
S3_PART_BYTES, S3_PARTS_AT_ONCE, S3_MOST_PARTS = 8 << 20, 4, 10_000
SHOWN_BYTES = 60  # a temporary name ends with at most this many bytes of the file's name; a name may have 255 bytes
NO_LOCK = "0" * 16  # replaces the lock domain in the names of files that are not locked
# each lock takes a file descriptor, of which a process often may have only 1,024; further files are not locked
MOST_LOCKS = 256
CONFLICT_WAITS = (0.1, 0.3, 1.0, 3.0)


@dataclass(frozen=True)
class Committed:
    """A committed file: its URL, its size in bytes and its xxh3-128. `created` is False if the file already existed."""

    url: str
    bytes: int
    xxh3: str
    created: bool


@contextmanager
def staging(url: str) -> Iterator[Path]:
    """Provide the path of a private, empty file for the future content of `url`. During the `with` block, the file is
    locked, so that no other process takes it for abandoned (`stale_files.py`); afterwards, it is removed. Write into
    this file, and do not replace it. If `url` is on a disk, the file is in the same directory, since a hard link cannot
    cross file systems. The file's name starts with a dot, so listings skip the file. If `url` is in a store, only this
    user can read the file, because other users of this machine share the temporary folder but may have no access to the
    store.
    """
    local = urls.is_local(url)
    folder = Path(urls.local_path(url)).parent if local else Path(tempfile.gettempdir())
    with storage_errors(url):
        folder.mkdir(parents=True, exist_ok=True)
        path, lock = _locked_file(folder, urls.name(url), 0o666 if local else 0o600)
    try:
        yield path
    except OSError as error:  # concerns this file or any other file that the `with` block uses
        refusal = translated(error, url, "write")
        if refusal is not None and (error.errno in SPACE or error.filename in (str(path), path)):
            raise refusal from error
        raise
    finally:
        try:
            path.unlink(missing_ok=True)
        finally:
            if lock is not None:
                locks.release(lock)


def _locked_file(folder: Path, name: str, mode: int) -> tuple[Path, int | None]:
    """Create a temporary file. Return its path and its lock, or None instead of the lock if this process already holds
    MOST_LOCKS locks.
    """
    if locks.count() < MOST_LOCKS:
        domain = locks.domain(str(folder))
        return locks.create(lambda: folder / temporary_name(name, domain), mode)
    path = folder / temporary_name(name)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    return path, None


def temporary_name(name: str, domain: str = NO_LOCK) -> str:
    """Return a hidden, unique name for a file that will be named `name`. `domain` says which processes can see the
    file's lock (`locks.domain`).
    """
    shown = name.encode()[-SHOWN_BYTES:].decode("utf-8", "ignore")
    return f"{TEMPORARY_PREFIX}{domain}-{uuid.uuid4().hex}-{shown}"


@contextmanager
def temporary_file(directory: str, name: str, data: bytes) -> Iterator[str]:
    """Keep a file with these bytes in `directory`, on a disk or in a store, during the `with` block, and provide its
    URL. Raises RootError, StorageError.
    """
    if urls.is_local(directory):
        with staging(urls.join(directory, name)) as path:
            with storage_errors(str(path)):
                path.write_bytes(data)
            yield str(path)
        return
    url = urls.join(directory, temporary_name(name))
    commit_bytes(data, url)
    try:
        yield url
    finally:
        removal.remove(url)


def commit_file(path: Path, url: str) -> Committed:
    """Create the file `url` with the content of the finished local file `path`, unless a file with the same content
    exists. Raises StorageError, and DivergentOutputError if a file with different content exists.
    """
    return commit_written(path, url, *hash_file(path))


def commit_written(path: Path, url: str, xxh3: str, length: int) -> Committed:
    """Do what `commit_file` does, for a file that was hashed while it was written. xxh3: the xxh3-128 of the bytes that
    were written to it. length: their number.
    """
    with storage_errors(url):
        created = _link(path, urls.local_path(url)) if urls.is_local(url) else _put(path, url)
    existing, existing_length = (xxh3, length) if created else hash_url(url)
    if existing != xxh3:
        raise DivergentOutputError(
            f"{url} exists with different content ({existing_length} bytes, xxh3 {existing}; this attempt wrote "
            f"{length} bytes, xxh3 {xxh3}); the first version is kept. If a library was upgraded since the step began, "
            "remove the step's directory and run again, or install the earlier version; otherwise, the task that "
            "writes the file is not deterministic"
        )
    return Committed(url, length, xxh3, created)


def commit_bytes(data: bytes | bytearray, url: str) -> Committed:
    """Create the file `url` with these bytes, unless a file with the same content exists. Raises DivergentOutputError,
    StorageError.
    """
    with staging(url) as path:
        path.write_bytes(data)
        return commit_written(path, url, xxhash.xxh3_128_hexdigest(data), len(data))


def create_bytes(data: bytes, url: str) -> bool:
    """Create the file `url` with these bytes. Return False, and leave the existing file as it is, if the name is taken,
    whatever that file contains. Raises StorageError.
    """
    with staging(url) as path:
        path.write_bytes(data)
        with storage_errors(url):
            return _link(path, urls.local_path(url)) if urls.is_local(url) else _put(path, url)


def replace_bytes(data: bytes, url: str) -> None:
    """Write or overwrite `url` atomically and durably: after a power cut, it has the old or the new content. Use this
    for files that may change, such as `latest.json`, hash caches, logs and plots, never for outputs.
    """
    if not urls.is_local(url):
        with storage_errors(url):
            file_system, remote = urls.filesystem(url)
            file_system.pipe_file(remote, data)
        return
    with staging(url) as path:
        path.write_bytes(data)
        with storage_errors(url):
            sync_file(path)
            os.replace(path, urls.local_path(url))
            sync_directories([os.path.dirname(urls.local_path(url))])


def sync_file(path: Path) -> None:
    """Make the content of a local file durable. Call this before renaming the file: a power cut could otherwise leave a
    file that has the new name, but is empty.
    """
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def folders_above(directory: str, paths: Iterable[str]) -> set[str]:
    """Return `directory` and all folders below it that contain any of `paths`, which are relative to `directory`."""
    folders = {directory}
    for path in paths:
        while path := path.rpartition("/")[0]:
            folders.add(urls.join(directory, path))
    return folders


def sync_directories(urls_of_directories: Iterable[str]) -> None:
    """Make the file names in these directories durable. Without this call, a power failure may remove a file's name
    even though the file's content was synced.
    """
    for url in urls_of_directories:
        if urls.is_local(url):
            with storage_errors(url):
                descriptor = os.open(urls.local_path(url), os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)


def hash_file(path: Path) -> tuple[str, int]:
    """Return the xxh3-128 (32 hex digits) and the size in bytes of a local file, using constant memory.

    The file is read into one small buffer: a new buffer for each read would be memory that the kernel has to clear.
    """
    digest, length, buffer = xxhash.xxh3_128(), 0, memoryview(bytearray(HASH_BUFFER))
    with open_regular(str(path)) as file:
        while count := cast(BufferedIOBase, file).readinto(buffer):
            digest.update(buffer[:count])
            length += count
    return digest.hexdigest(), length


def hash_url(url: str) -> tuple[str, int]:
    """Return the xxh3-128 (32 hex digits) and the size in bytes of a local or remote file, which is read as a
    stream.
    """
    with urls.open_read(url) as file:
        return hash_open(file)


def hash_open(file: BinaryIO, check: Callable[[], None] = lambda: None) -> tuple[str, int]:
    """Return the xxh3-128 (32 hex digits) and the size in bytes of an open file's content from the current position
    on. `check` is called after each chunk has been read, and may raise an exception to stop.
    """
    digest, length = xxhash.xxh3_128(), 0
    while chunk := file.read(HASH_CHUNK):
        check()
        digest.update(chunk)
        length += len(chunk)
    return digest.hexdigest(), length


def _link(path: Path, target: str) -> bool:
    sync_file(path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.link(path, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno == errno.EXDEV:  # `path` is on another file system
            with staging(target) as near:
                shutil.copyfile(path, near)
                return _link(near, target)
        if error.errno not in NO_LINKS or os.path.exists(target):
            raise
        os.rename(path, target)  # atomic, but in a race the last writer wins
    return True


def _put(path: Path, url: str) -> bool:
    file_system, remote = urls.filesystem(url)
    options = {}
    if urls.protocol(url) == "s3":
        part = max(S3_PART_BYTES, -(-path.stat().st_size // S3_MOST_PARTS))
        options = {"chunksize": part, "max_concurrency": S3_PARTS_AT_ONCE}
    for wait in (*CONFLICT_WAITS, None):
        try:
            file_system.put_file(str(path), remote, mode="create", **options)
        except FileExistsError:
            return False
        except OSError as error:
            if "PreconditionFailed" in str(error) or "pre-conditions" in str(error).lower():
                return False
            if "ConditionalRequestConflict" not in str(error) or wait is None:
                raise
            time.sleep(wait)  # another attempt is creating the same object
        else:
            return True
    raise AssertionError("unreachable: the last try returns or raises")
