"""One remote file, streamed into the step's directory: whole and proven, or not at all.

Chunks of 8 MiB are hashed and counted as they pass through a local temporary file. What is there is compared with the
listing (the store's checksum) whenever the file is opened and once more after its last byte; where the store has no
checksums, the hash of what came is compared with that of the listing, before the file gets its name. A break goes on
from the byte that was reached, with growing pauses; a refusal (401, 403) or a file that changed since it was listed
ends at once, since waiting would not help.

Cost: one pass over the network, one or two requests a file beside, disk space for one file, and constant memory.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from datakit.errors import ChangedInputError, DatakitError, NotFoundError, StorageError
from datakit.storage import atomic, urls
from datakit.storage.atomic import Committed

CHUNK_BYTES = 8 << 20
ATTEMPTS = 6
LONGEST_PAUSE = 60.0
_TRANSIENT_MODULES = ("aiohttp", "botocore", "requests", "urllib3", "httpx", "httpx2")


def fetch(url: str, target: str, size: int, checksum: str, progress: Callable[[int], None]) -> Committed:
    """Copy `url` to `target`; `size` and `checksum` are those of the listing, `progress` is told the bytes so far.

    Raises ChangedInputError, StorageError, NotFoundError.
    """
    with atomic.staging(target) as local:
        transfer = _Transfer(*urls.filesystem(url), local, size, checksum)
        breaks = 0
        while not transfer.proven:
            try:
                for done in transfer.go_on():
                    breaks = 0
                    progress(done)
            except Exception as error:
                breaks += 1
                if not _is_transient(error):
                    raise _refusal(url, error) from error
                if breaks >= ATTEMPTS:
                    raise StorageError(f"{url} broke off {breaks} times in a row, last: {error}; try again") from error
                time.sleep(_pause(breaks))
        return atomic.commit_file(local, target)


@dataclass
class _Transfer:
    """How far a file has come. What was read so far is hashed: a store without checksums is asked for the content."""

    file_system: Any
    path: str
    local: Path
    size: int
    checksum: str
    done: int = 0
    proven: bool = False
    _content: Any = field(default_factory=xxhash.xxh3_128)

    def go_on(self) -> Iterator[int]:
        """Copy what is missing, and prove the whole; yields the bytes so far after each chunk."""
        if self.done < self.size or not self.local.exists():
            yield from self._copy()
        if self.done < self.size:
            raise EOFError(f"it ended after {self.done} of {self.size} bytes")
        if not self._is_as_listed():
            self._require(self._content.hexdigest())
        self.proven = True

    def _copy(self) -> Iterator[int]:
        with (
            open(self.local, "r+b" if self.done else "wb") as sink,
            self.file_system.open(self.path, "rb", cache_type="none", block_size=CHUNK_BYTES) as source,
        ):
            self._is_as_listed(source)
            sink.truncate(self.done)
            sink.seek(self.done)
            source.seek(self.done)
            while chunk := source.read(CHUNK_BYTES):
                if self.done + len(chunk) > self.size:
                    raise ChangedInputError(f"it is longer than the {self.size} bytes of the listing")
                sink.write(chunk)
                sink.flush()
                self._content.update(chunk)
                self.done += len(chunk)
                yield self.done

    def _is_as_listed(self, source: Any = None) -> bool:
        """Whether the store's checksum is that of the listing, raising if it is another; False if there is none.

        source: just opened; where its driver asked the store for that, it is not asked again.
        """
        told = getattr(source, "details", None)
        now = urls.checksum_of(told) if isinstance(told, dict) else None
        now = now or urls.checksum_of(self.file_system.info(self.path))
        if now is not None:
            self._require(now)
        return now is not None

    def _require(self, now: str) -> None:
        if now != self.checksum:
            raise ChangedInputError(f"it has changed since it was listed (checksum {self.checksum}, now {now})")


def _is_transient(error: Exception) -> bool:
    if isinstance(error, DatakitError | PermissionError | FileNotFoundError):
        return False
    if getattr(error, "status", None) in (401, 403):
        return False
    return isinstance(error, OSError | EOFError) or type(error).__module__.split(".")[0] in _TRANSIENT_MODULES


def _refusal(url: str, error: Exception) -> Exception:
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"{url} was listed but is not there any more; run again to list anew")
    if isinstance(error, PermissionError) or getattr(error, "status", None) in (401, 403):
        return StorageError(f"{url} may not be read: {error}; {_credentials(url)}")
    if isinstance(error, ChangedInputError):
        return ChangedInputError(f"{url}: {error}; run again to list anew")
    return error


def _credentials(url: str) -> str:
    """Which credentials a store looks for."""
    protocol = url.partition("://")[0]
    return {
        "s3": "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE)",
        "gs": "check GOOGLE_APPLICATION_CREDENTIALS",
        "hf": "check HF_TOKEN, and that its owner was given access to the repository",
    }.get(protocol, f"check the credentials for {protocol}://")


def _pause(breaks: int) -> float:
    return min(LONGEST_PAUSE, 2.0 ** (breaks - 1)) * random.uniform(0.75, 1.25)
