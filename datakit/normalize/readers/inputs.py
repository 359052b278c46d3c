"""Opens a source's files where they lie, and notices one that is no longer what was listed.

A local source is read in place, hours after it was listed perhaps. What is read counts as the listed content, in every
fingerprint that follows, so a file is compared with its listing (size and modification time) when it is opened, and
with what it was then when its part was read, and before anything made of it is committed. The state is taken from the
open file: opening is when a network file system asks its server anew. Where only the time differs (a file that was
touched, another node's copy of it), the content decides.

Cost: two system calls a file; where its time differs, one more read of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from datakit.errors import ChangedInputError, NotFoundError
from datakit.storage import atomic, urls

READ_AGAIN_BYTES = 1 << 30  # each range of a larger file would read all of it
State = tuple[int, int]  # size in bytes, modification time in ns


@dataclass(frozen=True)
class Inputs:
    """The files below `base`, as one task opens them.

    listed: path -> (size in bytes, modification time in ns, xxh3-128). A file that it does not name is not watched:
    nobody changes a copy of ours.
    """

    base: str
    listed: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    _open: dict[str, BinaryIO] = field(default_factory=dict, init=False)
    _mapped: set[str] = field(default_factory=set, init=False)
    _states: dict[str, State] = field(default_factory=dict, init=False)

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """A binary, seekable reader. Raises ChangedInputError also in place of what a reader says of a changed file."""
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

    def keep_watching(self, path: str) -> None:
        """For a file whose mapped bytes are used after it was closed."""
        if path in self.listed:
            self._mapped.add(path)

    def check(self) -> None:
        """Raises ChangedInputError where what was read so far may not be what was listed."""
        for path, file in self._open.items():
            self._check_open(path, file)
        for path in self._mapped:
            _compare(path, self._states[path], _state(os.stat(urls.local_path(urls.join(self.base, path)))))

    def _opened(self, path: str) -> BinaryIO:
        try:
            return urls.open_read(urls.join(self.base, path))
        except NotFoundError as error:
            if path not in self.listed:
                raise
            raise ChangedInputError(f"{path} was listed, but is not there any more; run again to list anew") from error

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


def _state(found: os.stat_result) -> State:
    return found.st_size, found.st_mtime_ns


def _compare(path: str, before: State, now: State) -> None:
    if before != now:
        how = f"{now[0]} bytes, not {before[0]}" if before[0] != now[0] else "written to, with its size as before"
        raise ChangedInputError(
            f"{path} has changed since it was listed ({how}); run again when nobody writes to it: it is listed anew"
        )
