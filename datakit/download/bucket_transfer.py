"""Copies one object of a bucket into the step's directory; keeps the bytes that have arrived, so that a later attempt
or run requests only the missing ones.

An object is read by one request. Whenever it is opened, the store states its size and its checksum, which must be
those of the listing; Google Cloud Storage states the checksum in another answer, so it is asked once more after the
last byte. The content is compared with the hash of it that the store states: Google Cloud Storage states the MD5 of
most objects; S3 states a hash of most objects that are read without a break, and the client compares it.

If the connection breaks, the rest is requested (with at most 2 MiB that were on the way), after a pause that doubles
with each failure that brought no byte beyond those that had arrived before. The bytes are in a partial file
(`web/partial_file.py`), which survives a killed process. Only a complete and verified file gets its final name.

Cost: one request per object (two in Google Cloud Storage), one read of the finished file, and constant memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from datakit.download.transfer import is_transient, refusal, wait
from datakit.download.web.partial_file import PART_BYTES, PartialFile, partial_file
from datakit.errors import ChangedInputError, CorruptError, RootError, StorageError
from datakit.storage import atomic
from datakit.storage.atomic import Committed
from datakit.storage.buckets.answers import ObjectBytes
from datakit.storage.buckets.bucket import Bucket, open_bucket
from datakit.storage.buckets.refusals import advice
from datakit.storage.io_errors import denies_access, shareable, storage_errors
from datakit.store_access import StoreAccess

_WRONG_IN_S3 = "FlexibleChecksumError"  # botocore's error for content that does not have the hash that S3 states
_NO_SUCH_RANGE = ("satisfiable", "status 416")


class _WrongBytesError(EOFError):
    """The content does not have the hash that the store states."""


class _ContradictionError(ConnectionError):
    """The store states another size of the version that was listed, or a proxy does."""


@dataclass(frozen=True)
class BucketFile:
    """An object to be copied. size, checksum: the values in the listing."""

    url: str
    size: int
    checksum: str
    access: StoreAccess


def fetch(file: BucketFile, target: str, folder: Path, progress: Callable[[int], None]) -> Committed:
    """Copy an object to `target`. Raises ChangedInputError, CorruptError, NotFoundError, RootError or StorageError.

    folder: a local directory for the bytes that have arrived. progress: called with their number.
    """
    with storage_errors(target), partial_file(folder, target, file.size, file.checksum) as partial:
        transfer = _Transfer(file, *open_bucket(file.url, file.access), partial, progress, partial.received())
        transfer.run()
        xxh3, length = atomic.hash_file(partial.path)
        if length != file.size:
            raise CorruptError(f"{file.url}: {length} bytes lie on the disk, but {file.size} were written; run again")
        return atomic.commit_written(partial.path, target, xxh3, length)


@dataclass
class _Transfer:
    """The state of a transfer. done: how many bytes lie in the partial file; they are always the object's first ones.
    best: the largest `done` so far. md5: that of the content, as the store states it; "" if unknown. wrong: how often
    the content did not have the hash that the store states.
    """

    file: BucketFile
    bucket: Bucket
    key: str
    partial: PartialFile
    progress: Callable[[int], None]
    done: int
    best: int = 0
    md5: str = ""
    wrong: int = 0
    verified: bool = False

    def run(self) -> None:
        """Get the missing bytes, and verify the object's version."""
        breaks, self.best = 0, self.done
        self.progress(self.done)
        while not self.verified:
            before = self.best
            try:
                self._attempt()
            except Exception as error:  # noqa: BLE001 - raised again, or retried
                self._forget_wrong_bytes(error)
                breaks = 1 if self.best > before else breaks + 1
                if not is_transient(error):
                    raise self._refusal(error) from shareable(error)
                wait(self.file.url, breaks, error, "run again, which continues where it stopped")

    def _attempt(self) -> None:
        stated = ""
        if self.done < self.file.size or not self.file.size:  # an empty file is read, too, since it may have grown
            with self.bucket.read(self.key, self.done) as answer:
                stated = self._checked(answer)
                for data in answer.chunks:
                    self._append(data)
            if self.done < self.file.size:
                raise EOFError(f"the connection closed after {self.done} of {self.file.size} bytes")
        self._compare_content()
        if not stated:
            self._require_same_version()
        self.verified = True

    def _checked(self, answer: ObjectBytes) -> str:
        """Compare an answer with the listing, before its bytes are read. Return the checksum that it states, or ""."""
        self._require(answer.checksum or self.file.checksum)
        if answer.total is not None and answer.total != self.file.size:
            self._require_same_version()
            raise _ContradictionError(f"the store states {answer.total} bytes, but listed {self.file.size}")
        if answer.first not in (0, self.done):
            raise StorageError(
                f"the store sent bytes from {answer.first} on, but was asked for those from {self.done} on"
            )
        if answer.first != self.done:
            self._forget()  # the store does not answer with ranges
        self.md5 = answer.md5 or self.md5
        return answer.checksum

    def _compare_content(self) -> None:
        if not self.md5:
            return
        with open(self.partial.path, "rb") as content:
            found = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found != self.md5:
            raise _WrongBytesError(f"the content has the MD5 {found}, but the store states {self.md5}")

    def _require_same_version(self) -> None:
        found = self.bucket.describe(self.key)
        if found is None:
            raise FileNotFoundError(self.key)
        self._require(found.checksum)
        if found.size != self.file.size:
            raise ChangedInputError(f"it has {found.size} bytes, but {self.file.size} were listed")

    def _require(self, checksum: str) -> None:
        if checksum != self.file.checksum:
            raise ChangedInputError(
                f"it has changed since it was listed (checksum {self.file.checksum}, now {checksum})"
            )

    def _append(self, data: bytes) -> None:
        if self.done + len(data) > self.file.size:
            raise ChangedInputError(f"it is longer than the {self.file.size} bytes that were listed")
        view = memoryview(data)
        while view:
            number = self.done // PART_BYTES
            count = min(len(view), self.partial.missing(number))
            self.partial.write(number, bytes(view[:count]))
            view, self.done = view[count:], self.done + count
        self.best = max(self.best, self.done)
        self.progress(self.done)

    def _forget_wrong_bytes(self, error: Exception) -> None:
        if not isinstance(error, _WrongBytesError) and type(error).__name__ != _WRONG_IN_S3:
            return
        self.wrong += 1
        self._forget()
        if self.wrong > 1:
            raise CorruptError(
                f"{self.file.url}: what arrived does not have the hash that the store states, twice in a row "
                f"({error}); run again, or report it to the store's operator"
            ) from shareable(error)

    def _forget(self) -> None:
        self.partial.forget()
        self.done = 0

    def _refusal(self, error: Exception) -> Exception:
        if denies_access(error):
            return RootError(
                f"access to {self.file.url} was denied ({error}); {advice(self.file.url, self.file.access)}"
            )
        if isinstance(error, OSError) and any(words in str(error) for words in _NO_SUCH_RANGE):
            return ChangedInputError(
                f"{self.file.url}: it has fewer bytes than the {self.file.size} that were listed; run again to list "
                "the source again"
            )
        return refusal(self.file.url, error)
