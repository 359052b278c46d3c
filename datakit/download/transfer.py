"""Copies one remote file into the step's directory, resumes after broken connections, verifies size and checksum, and
composes the error messages for refused access and changed files. The data passes through a local temporary file, 8 MiB
at a time, so the target either does not exist or is complete and verified. The store's checksum is compared with the
listing each time the remote file is opened, and once more after its last byte has been received. If the store has no
checksums, the hash of the received bytes is compared with the listing before the file gets its final name. If the
connection breaks, the transfer resumes at the byte it had reached, after a pause that doubles with each failure. Only
failures of the network or the store are retried. If access is refused (401, 403), the file has changed since it was
listed, or the disk fails, the transfer fails immediately, since waiting would not help.

Cost: one transfer of the file, one or two extra requests, disk space for one file, and constant memory.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from datakit.errors import ChangedInputError, DatakitError, NotFoundError, StorageError
from datakit.signed_urls import split_query
from datakit.storage import atomic, urls
from datakit.storage.atomic import Committed
from datakit.storage.io_errors import NEW_SIGNATURE, SPACE, denies_access, http_failure, shareable

READ_BYTES = 8 << 20  # bytes per request; large enough to hide the latency of a round trip
ATTEMPTS = 6  # give up after this many consecutive attempts that receive nothing; the pauses add up to half a minute
_TRANSIENT_MODULES = ("aiohttp", "botocore", "requests", "urllib3", "httpx", "httpx2")
# s3fs reports a store's errors 500 and 503 as EIO, EREMOTEIO or EBUSY; some clients set no errno (None).
_TRANSIENT = (
    None, errno.EIO, errno.EREMOTEIO, errno.EBUSY, errno.EAGAIN, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET,
    errno.EHOSTDOWN, errno.EHOSTUNREACH,
)  # fmt: skip


def fetch(url: str, target: str, size: int, checksum: str, progress: Callable[[int], None]) -> Committed:
    """Copy `url` to `target`. Raises ChangedInputError, StorageError or NotFoundError.

    size, checksum: the values in the listing. progress: called with the number of bytes received so far.
    """
    with atomic.staging(target) as local:
        transfer = _Transfer(*urls.filesystem(url), local, size, checksum)
        breaks = 0
        while not transfer.verified:
            try:
                for done in transfer.resume():
                    breaks = 0
                    progress(done)
            except Exception as raised:  # noqa: BLE001 - raised again, or retried
                error = http_failure(raised)
                breaks += 1
                if not is_transient(error):
                    raise refusal(url, error) from shareable(raised)
                wait(url, breaks, error)
        return atomic.commit_file(local, target)


@dataclass
class _Transfer:
    """The state of one transfer, including the hash of the bytes received (needed if the store has no checksums)."""

    file_system: Any
    path: str
    local: Path
    size: int
    checksum: str
    done: int = 0
    verified: bool = False
    _content: Any = field(default_factory=xxhash.xxh3_128)

    def resume(self) -> Iterator[int]:
        """Copy the missing bytes and verify the file. After each read, yield the number of bytes received so far."""
        if self.done < self.size or not self.size:  # an empty file is read, too, since it may have grown
            yield from self._copy()
        if self.done < self.size:
            raise EOFError(f"the connection closed after {self.done} of {self.size} bytes")
        if not self._is_as_listed():
            self._require(self._content.hexdigest())
        self.verified = True

    def _copy(self) -> Iterator[int]:
        with (
            open(self.local, "r+b" if self.done else "wb") as sink,
            self.file_system.open(self.path, "rb", cache_type="none", block_size=READ_BYTES) as source,
        ):
            self._is_as_listed(source)
            sink.truncate(self.done)
            sink.seek(self.done)
            source.seek(self.done)
            while data := source.read(READ_BYTES):
                if self.done + len(data) > self.size:
                    raise ChangedInputError(f"it is longer than the {self.size} bytes that were listed")
                sink.write(data)
                sink.flush()
                self._content.update(data)
                self.done += len(data)
                yield self.done

    def _is_as_listed(self, source: Any = None) -> bool:
        """Return True if the store's checksum equals the listing's, or False if the store has none.

        Raises ChangedInputError if the two checksums differ. source: the remote file, if it has just been opened. If
        opening it has already fetched the checksum, no further request is made.
        """
        details = getattr(source, "details", None)
        now = urls.checksum_of(details) if isinstance(details, dict) else None
        now = now or urls.checksum_of(self.file_system.info(self.path))
        if now is not None:
            self._require(now)
        return now is not None

    def _require(self, now: str) -> None:
        if now != self.checksum:
            raise ChangedInputError(f"it has changed since it was listed (checksum {self.checksum}, now {now})")


def is_transient(error: Exception) -> bool:
    """Return True if `error` is a failure of the network or of the store, which may pass."""
    if isinstance(error, DatakitError | FileNotFoundError) or denies_access(error):
        return False
    if type(error).__module__.split(".")[0] in _TRANSIENT_MODULES:
        return True
    if isinstance(error, ConnectionError | TimeoutError | EOFError):
        return True
    return isinstance(error, OSError) and error.filename is None and error.errno in _TRANSIENT


def wait(url: str, failures: int, error: Exception, advice: str = "run again") -> None:
    """Wait before the next attempt, twice as long after each failure. Raises StorageError after ATTEMPTS failures.

    failures: how many attempts in a row have failed; the last one failed with `error`, which may pass.
    """
    if failures >= ATTEMPTS:
        raise StorageError(
            f"the download of {url} failed {failures} times in a row; the last error was: {error}; {advice}"
        ) from shareable(error)
    time.sleep(2.0 ** (failures - 1) * random.uniform(0.75, 1.25))


def refusal(url: str, error: Exception) -> Exception:
    """Return the error to raise for a failure that is not retried."""
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"{url} was listed but no longer exists; run again to list the source again")
    if denies_access(error):
        return StorageError(f"access to {url} was denied: {error}; {_credentials(url)}")
    if isinstance(error, ChangedInputError):
        return ChangedInputError(f"{url}: {error}; run again to list the source again")
    # If a disk is full, the error is returned unchanged: `atomic.staging`, which `fetch` uses, says which disk that is.
    if isinstance(error, OSError) and error.errno not in SPACE:
        return StorageError(f"the download of {url} failed: {error}; this is not a network error, so no retry was made")
    return error


def _credentials(url: str) -> str:
    """Return the part of an error message that says which credentials to check for a store."""
    if split_query(url)[1]:
        return NEW_SIGNATURE
    protocol = url.partition("://")[0]
    return {
        "s3": "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE)",
        "gs": "check GOOGLE_APPLICATION_CREDENTIALS",
        "hf": "check HF_TOKEN, and that its owner has access to the repository",
    }.get(protocol, f"check the credentials for {protocol}://")
