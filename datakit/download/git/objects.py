"""Reads the files of a commit, and commits, from a bare repository, one at a time, and verifies each against its id.

Two processes of `git` run at once: one lists the files, the other returns their contents on demand, so memory holds one
file. Cost: about 60 microseconds per file.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from datakit.download.git.client import command, environment
from datakit.errors import CorruptError
from datakit.printable import one_line

LINK, SUBMODULE = "120000", "160000"
READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Entry:
    """An entry of a commit's tree. mode: the type of the entry, as six octal digits. size: None for a submodule."""

    path: str
    mode: str
    identity: str
    size: int | None


class Objects:
    """The objects of a bare repository. Use it in a `with` block, which ends the processes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stack = folder, ExitStack()

    def __enter__(self) -> Objects:
        self._contents = self._start("cat-file", "--batch")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def entries(self, commit: str) -> Iterator[Entry]:
        """Yield the entries of a commit's tree, in order of their paths. Raises CorruptError."""
        with self.reader("ls-tree", "-r", "-z", "-l", "--full-tree", commit) as stream:
            for line in nul_separated(stream):
                yield _entry(line)

    def content(self, entry: Entry) -> bytes:
        """Return the content of a file. Raises CorruptError."""
        return self._object(entry.identity, "blob", one_line(entry.path), entry.size)

    def commit(self, identity: str) -> bytes:
        """Return the content of a commit object. Raises CorruptError."""
        return self._object(identity, "commit", "a commit")

    @contextmanager
    def reader(self, *arguments: str, stdin: int | IO[bytes] = subprocess.DEVNULL) -> Iterator[IO[bytes]]:
        """Run `git` on the repository, and read what it writes. Raises CorruptError if it does not succeed, or has
        written more than was read.
        """
        process = self._start(*arguments, stdin=stdin)
        assert process.stdout is not None
        yield process.stdout
        if process.stdout.read(1) or process.wait():
            raise CorruptError(f"`git {arguments[0]}` failed on the repository; run again")

    def _object(self, identity: str, kind: str, name: str, size: int | None = None) -> bytes:
        """Return the content of an object. size: as it was listed, or None."""
        assert self._contents.stdin is not None and self._contents.stdout is not None
        self._contents.stdin.write(f"{identity}\n".encode())
        self._contents.stdin.flush()
        head = self._contents.stdout.readline().decode("ascii", "replace").split()
        if len(head) != 3 or head[:2] != [identity, kind] or (size is not None and head[2] != str(size)):
            raise CorruptError(f"git could not read {name} ({identity}); run again")
        size = int(head[2])
        data = _exactly(self._contents.stdout, size + 1)[:size]
        algorithm = hashlib.sha1 if len(identity) == 40 else hashlib.sha256
        if algorithm(b"%s %d\0" % (kind.encode(), size) + data).hexdigest() != identity:
            raise CorruptError(f"{name} differs from its id {identity} in the repository")
        return data

    def _start(self, *arguments: str, stdin: int | IO[bytes] = subprocess.PIPE) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command("file", "-C", str(self._folder), *arguments),
            env=environment(), stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process


def nul_separated(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield what stands before each NUL of a stream. Raises CorruptError if something follows the last one."""
    rest = b""
    while data := stream.read(READ_BYTES):
        *found, rest = (rest + data).split(b"\0")
        yield from found
    if rest:
        raise CorruptError("git ended before its list was complete; run again")


def _entry(line: bytes) -> Entry:
    about, _, path = line.partition(b"\t")
    mode, _, identity, size = about.decode("ascii").split()
    return Entry(path.decode("utf-8", "surrogateescape"), mode, identity, None if size == "-" else int(size))


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise CorruptError("git ended before a file's content was complete; run again")
    return data
