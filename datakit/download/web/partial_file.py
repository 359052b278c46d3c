"""Keeps the bytes of a file that is being downloaded, and notes which of them have arrived, so that a later attempt or
run requests only the missing ones.

The file has the size of the finished file from the start; its parts, PART_BYTES each, are filled from their beginnings.
A second file, `<name>.parts`, holds a line that identifies the download, and 8 bytes for each part: how many of its
bytes have arrived. They are written after the bytes, so a killed process loses nothing and claims nothing too much.
After a power cut the order would not be certain; therefore the line names the boot of this machine, and what arrived
before a reboot is requested again.

A lock ensures that one process writes to it. If another process holds the lock, or locks are not supported, a private
file is used, which is removed at the end in any case.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import xxhash

from datakit.storage import locks

PART_BYTES = 16 << 20
COUNT_BYTES = 8


@dataclass
class PartialFile:
    """A file whose bytes are arriving. done: the number of bytes at the beginning of each part that have arrived.
    Different threads may write to different parts.
    """

    path: Path
    size: int
    done: list[int]
    _content: int
    _counts: int
    _first_count: int

    def part(self, number: int) -> tuple[int, int]:
        """Return the offsets where a part begins and ends."""
        return number * PART_BYTES, min(self.size, (number + 1) * PART_BYTES)

    def missing_parts(self) -> list[int]:
        """Return the numbers of the parts that are incomplete."""
        return [number for number in range(len(self.done)) if self.missing(number)]

    def missing(self, number: int) -> int:
        """Return how many bytes of a part are missing."""
        start, stop = self.part(number)
        return stop - start - self.done[number]

    def received(self) -> int:
        """Return how many bytes have arrived."""
        return sum(self.done)

    def write(self, number: int, data: bytes) -> None:
        """Append bytes to a part."""
        assert len(data) <= self.missing(number), "the caller counts the bytes"
        _write_all(self._content, data, self.part(number)[0] + self.done[number])
        self.done[number] += len(data)
        self._note(number)

    def forget(self) -> None:
        """Forget all bytes."""
        for number in range(len(self.done)):
            self.done[number] = 0
            self._note(number)

    def _note(self, number: int) -> None:
        count = self.done[number].to_bytes(COUNT_BYTES, "little")
        _write_all(self._counts, count, self._first_count + COUNT_BYTES * number)


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def identity(name: str, size: int, version: str) -> bytes:
    """Return the line that identifies a download: equal for two attempts only if they may share their bytes."""
    facts = f"{name}\n{size}\n{version}\n{PART_BYTES}\n{locks.boot()}"
    return f"datakit.parts/1 {xxhash.xxh3_128_hexdigest(facts.encode())}\n".encode()


@contextmanager
def partial_file(folder: Path, name: str, size: int, version: str) -> Iterator[PartialFile]:
    """Open the partial file of a download, with what an earlier attempt has left. After the block, it stays if the
    block has raised an exception, and is removed otherwise. folder: where it lies; kept for a later attempt.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = folder / xxhash.xxh3_128_hexdigest(name.encode())
    path, lock = _locked(wanted)
    is_private = path != wanted
    try:
        counts = os.open(_counts_path(path), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield _opened(path, lock, counts, size, identity(name, size, version))
        finally:
            os.close(counts)
        is_private = True
    finally:
        if is_private:
            for one in (_counts_path(path), path):
                one.unlink(missing_ok=True)
        locks.release(lock)


def _counts_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.parts")


def _locked(wanted: Path) -> tuple[Path, int]:
    lock = locks.take(wanted)
    if lock is not None:
        return wanted, lock
    with suppress(FileExistsError):
        return locks.create(lambda: wanted, 0o600)
    return locks.create(lambda: wanted.with_name(f"{wanted.name}-{uuid.uuid4().hex}"), 0o600)


def _opened(path: Path, content: int, counts: int, size: int, line: bytes) -> PartialFile:
    parts = -(-size // PART_BYTES)
    length = len(line) + COUNT_BYTES * parts
    found = os.pread(counts, length + 1, 0)
    done = [0] * parts
    if found.startswith(line) and len(found) == length and os.fstat(content).st_size == size:
        numbers = range(len(line), length, COUNT_BYTES)
        done = [int.from_bytes(found[at : at + COUNT_BYTES], "little") for at in numbers]
    partial = PartialFile(path, size, done, content, counts, len(line))
    if any(partial.missing(number) < 0 for number in range(parts)) or not any(done):
        os.ftruncate(content, 0)
        os.ftruncate(content, size)
        os.ftruncate(counts, 0)
        _write_all(counts, line + bytes(COUNT_BYTES * parts), 0)
        partial.done = [0] * parts
    return partial
