"""Lists the files of a publication with their hashes, and reads them.

Each Parquet file is read once to compute its SHA-256, and its xxh3 is compared with the step's manifest, so damage is
not published. It is read again while it is uploaded. For a bucket that states MD5 checksums (S3), these are computed in
the same pass, so that an object can be compared with a file without downloading it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.atomic import HASH_CHUNK, S3_MOST_PARTS, S3_PART_BYTES
from datakit.storage.io_errors import storage_errors
from datakit.storage.manifest import Manifest
from datakit.storage.stale_files import scratch_directory

Progress = Callable[[int, int, str], None]  # called with what is done, the total and a noun


@dataclass(frozen=True)
class OutgoingFile:
    """A file to publish. content: its bytes, if it is small and made by this program; otherwise, they are at `url`.
    etags: the checksums with which an S3 bucket may describe it; empty if they were not computed.
    """

    path: str
    bytes: int
    sha256: str
    url: str = ""
    content: bytes | None = None
    rows: int | None = None
    etags: tuple[str, ...] = ()


def small_file(path: str, content: bytes) -> OutgoingFile:
    """Return a file with these bytes."""
    etag = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return OutgoingFile(path, len(content), hashlib.sha256(content).hexdigest(), content=content, etags=(etag,))


def data_files(directory: str, manifest: Manifest, progress: Progress, *, etags: bool) -> list[OutgoingFile]:
    """Hash the partitions of a step. etags: also compute the checksums of an S3 bucket. Raises CorruptError for a file
    that differs from the manifest, and NotFoundError or StorageError.
    """
    total, done, files = manifest.totals.bytes, 0, []
    for part in manifest.partitions:
        url = urls.join(directory, part.path)
        digests = _Digests(part.bytes, etags)
        with urls.open_read(url) as file:
            while chunk := file.read(HASH_CHUNK):
                digests.update(chunk)
                progress((done + digests.length) // 1_000_000, total // 1_000_000, "MB read")
        if (digests.length, digests.xxh3.hexdigest()) != (part.bytes, part.xxh3):
            raise CorruptError(
                f"{url} has {digests.length} bytes and the xxh3 {digests.xxh3.hexdigest()}, but its manifest states "
                f"{part.bytes} and {part.xxh3}; remove the step's directory and run the recipe again"
            )
        done += part.bytes
        sha256 = digests.sha256.hexdigest()
        files.append(OutgoingFile(part.path, part.bytes, sha256, url, rows=part.rows, etags=digests.etags()))
    return files


class _Digests:
    """The hashes of a file of `size` bytes, which is read in any pieces."""

    def __init__(self, size: int, etags: bool) -> None:
        self.length, self.xxh3, self.sha256 = 0, xxhash.xxh3_128(), hashlib.sha256()
        self._part_bytes = part_bytes(size)
        self._whole = hashlib.md5(usedforsecurity=False) if etags else None
        self._part, self._parts = hashlib.md5(usedforsecurity=False), list[bytes]()

    def update(self, chunk: bytes) -> None:
        self.xxh3.update(chunk)
        self.sha256.update(chunk)
        if self._whole is not None:
            self._whole.update(chunk)
            self._update_parts(chunk)
        self.length += len(chunk)

    def _update_parts(self, chunk: bytes) -> None:
        position, rest = self.length, memoryview(chunk)
        while rest:
            room = self._part_bytes - position % self._part_bytes
            self._part.update(rest[:room])
            position, rest = position + len(rest[:room]), rest[room:]
            if position % self._part_bytes == 0:
                self._end_part()

    def _end_part(self) -> None:
        self._parts.append(self._part.digest())
        self._part = hashlib.md5(usedforsecurity=False)

    def etags(self) -> tuple[str, ...]:
        """Return the ETag of an object that was uploaded at once, and that of one uploaded in parts."""
        if self._whole is None:
            return ()
        if self.length % self._part_bytes:
            self._end_part()
        parts = hashlib.md5(b"".join(self._parts), usedforsecurity=False).hexdigest()
        return self._whole.hexdigest(), f"{parts}-{len(self._parts)}"


def part_bytes(size: int) -> int:
    """Return the size of the parts in which an object of `size` bytes is uploaded to S3."""
    return max(S3_PART_BYTES, -(-size // S3_MOST_PARTS))


def sha256_of(url: str) -> str:
    """Return the SHA-256 of a file, which is read as a stream. Raises NotFoundError, StorageError."""
    digest = hashlib.sha256()
    with urls.open_read(url) as file:
        while chunk := file.read(HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def copy_to(file: OutgoingFile, path: Path) -> None:
    """Write a file's content to a local path. Raises CorruptError if the content has changed since it was hashed."""
    digest = hashlib.sha256()
    with path.open("wb") as out:
        for chunk in _chunks(file):
            digest.update(chunk)
            with storage_errors(str(path)):
                out.write(chunk)
    if digest.hexdigest() != file.sha256:
        raise CorruptError(f"{file.url or file.path} changed while it was published; run the same command again")


def _chunks(file: OutgoingFile) -> Iterator[bytes]:
    if file.content is not None:
        yield file.content
        return
    with urls.open_read(file.url) as source:
        while chunk := source.read(HASH_CHUNK):
            yield chunk


@contextmanager
def local_path(file: OutgoingFile) -> Iterator[Path]:
    """Provide a local file with the content of `file`; a remote one is copied to the temporary disk."""
    if file.content is None and urls.is_local(file.url):
        yield Path(urls.local_path(file.url))
        return
    with scratch_directory() as scratch:
        copy_to(file, scratch / "file")
        yield scratch / "file"
