"""Opens a source's files in place, and detects by size, modification time and, if needed, hash whether a file has
changed since it was listed. A local source may be read hours after it was listed, and every downstream fingerprint
assumes that the content read is the content listed. Therefore a file's size and modification time are compared with the
listing when the file is opened. Before each commit while the file is open, and after the task's range has been read,
they are compared with the values at opening. The latter are taken from the open file, because a network file system
fetches current attributes from its server when a file is opened. If only the time differs from the listing (a touched
file, another node's copy), the content hash decides; a file over 1 GiB is not hashed, but treated as changed.
Cost: two system calls per file, one per open file at each commit, and one more read of a file whose time differs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from datakit.errors import ChangedInputError, NotFoundError, StorageError, UnreadableError
from datakit.printable import one_line
from datakit.storage import atomic, urls

# a larger file is not hashed again if only its time differs: each range's task would have to read the whole file
READ_AGAIN_BYTES = 1 << 30
State = tuple[int, int]  # size in bytes, modification time in ns


@dataclass(frozen=True)
class Inputs:
    """The files below `base` that one task opens. listed: path -> (size in bytes, modification time in ns, xxh3-128).
    Files that are not listed are not checked: they are datakit's own copies, or `datakit inspect` reads them.
    query: the query string of the URL of a single remote file that is read in place.
    copies: path -> the copy's path below `base`, for each file whose copy has another path (`download/copy_names.py`).
    content_starts: (path, byte of the stored file) -> byte of its content, for the ranges of compressed web archives.
    attributes: path -> the files that hold the attributes of the documents in this file (`dolma/attribute_files.py`).
    """

    base: str
    listed: Mapping[str, Any] = field(default_factory=dict)
    query: str = field(default="", repr=False)
    copies: Mapping[str, str] = field(default_factory=dict)
    content_starts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    attributes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _open: dict[str, BinaryIO] = field(default_factory=dict, init=False)
    _mapped: set[str] = field(default_factory=set, init=False)
    _states: dict[str, State] = field(default_factory=dict, init=False)

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """Open a file as a seekable binary reader.

        If the file has changed, raises ChangedInputError, even if reading it first raised a different error.
        """
        with self._opened(path) as file:
            self._check_listed(path, file)
            self._open[path] = file
            try:
                yield file
            except Exception:
                self._check_open(path, file)
                raise
            else:
                self._check_open(path, file)
            finally:
                del self._open[path]

    def url(self, path: str) -> str:
        """Return the URL of a file."""
        return urls.child(self.base, self.copies.get(path, path))

    def keep_watching(self, path: str) -> None:
        """Make `check` include a memory-mapped file even after the file is closed."""
        if path in self.listed:
            self._mapped.add(path)

    def check(self) -> None:
        """Raise ChangedInputError if any file that is open or watched has changed since it was opened."""
        for path, file in self._open.items():
            self._check_open(path, file)
        for path in self._mapped:
            _compare(path, self._states[path], _state(os.stat(urls.local_path(self.url(path)))))

    def _opened(self, path: str) -> BinaryIO:
        url = f"{self.base}/{path}{self.query}" if self.query else self.url(path)
        try:
            return urls.open_read(url)
        except (UnreadableError, StorageError) as error:
            if path not in self.listed or os.path.isfile(url):
                raise
            now = "no longer exists" if isinstance(error, NotFoundError) else "is no longer a regular file"
            raise ChangedInputError(
                f"{one_line(path)} was listed but {now}; run again to list the source again"
            ) from error

    def _check_listed(self, path: str, file: BinaryIO) -> None:
        if path not in self.listed:
            return
        size, modified, xxh3 = self.listed[path]
        now = self._states[path] = _state(os.fstat(file.fileno()))
        only_time = now[0] == size and now[1] != modified
        if only_time and size <= READ_AGAIN_BYTES and atomic.hash_open(file) == (xxh3, size):
            file.seek(0)
        else:
            _compare(path, (size, modified), now)

    def _check_open(self, path: str, file: BinaryIO) -> None:
        if path in self.listed:
            _compare(path, self._states[path], _state(os.fstat(file.fileno())))


def _state(status: os.stat_result) -> State:
    return status.st_size, status.st_mtime_ns


def _compare(path: str, before: State, now: State) -> None:
    if before != now:
        how = f"{now[0]} bytes instead of {before[0]}" if before[0] != now[0] else "new modification time, same size"
        raise ChangedInputError(
            f"{one_line(path)} has changed since it was listed ({how}); run again once nothing is writing to it"
        )
