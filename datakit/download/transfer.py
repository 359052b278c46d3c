"""One remote file, streamed into the step's directory: whole and proven, or not at all.

Chunks of 8 MiB are hashed and counted as they pass through a local temporary file; the size is compared with the
listing before the file gets its name. A break goes on from the byte that was reached, with growing pauses; a refusal
(401, 403) or a file that changed since it was listed ends at once, since waiting would not help.

Cost: one pass over the network, disk space for one file, and constant memory.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from datakit.errors import NotFoundError, StorageError
from datakit.storage import atomic, urls
from datakit.storage.atomic import Committed

CHUNK_BYTES = 8 << 20
ATTEMPTS = 6
LONGEST_PAUSE = 60.0
_TRANSIENT_MODULES = ("aiohttp", "botocore", "requests", "urllib3", "httpx", "httpx2")


def fetch(url: str, target: str, size: int, checksum: str, progress: Callable[[int], None]) -> Committed:
    """Copy `url` to `target`; `size` and `checksum` are those of the listing, `progress` is told the bytes so far.

    Raises StorageError, NotFoundError.
    """
    file_system, path = urls.filesystem(url)
    with atomic.staging(target) as local:
        done, breaks = 0, 0
        while done < size or not local.exists():
            try:
                if done == 0:
                    _check_unchanged(file_system, path, url, checksum)
                for length in _copy(file_system, path, local, done, size):
                    done += length
                    breaks = 0
                    progress(done)
                if done < size:
                    raise EOFError(f"it ended after {done} of {size} bytes")
            except Exception as error:
                breaks += 1
                if not _is_transient(error):
                    raise _refusal(url, error) from error
                if breaks >= ATTEMPTS:
                    raise StorageError(f"{url} broke off {breaks} times in a row, last: {error}; try again") from error
                time.sleep(_pause(breaks))
        return atomic.commit_file(local, target)


def _copy(file_system: Any, path: str, local: Path, start: int, size: int) -> Any:
    """Append the bytes from `start` on to `local`; yields the length of each chunk once it is written."""
    with open(local, "r+b" if start else "wb") as sink, _open(file_system, path) as source:
        sink.truncate(start)
        sink.seek(start)
        source.seek(start)
        while chunk := source.read(CHUNK_BYTES):
            start += len(chunk)
            if start > size:
                raise StorageError(f"it is longer than the {size} bytes of the listing: it has changed since")
            sink.write(chunk)
            sink.flush()
            yield len(chunk)


def _open(file_system: Any, path: str) -> BinaryIO:
    return file_system.open(path, "rb", cache_type="none", block_size=CHUNK_BYTES)


def _check_unchanged(file_system: Any, path: str, url: str, checksum: str) -> None:
    now = urls.checksum_of(file_system.info(path))
    if now is not None and now != checksum:
        raise StorageError(f"it has changed since it was listed (checksum {checksum}, now {now})")


def _is_transient(error: Exception) -> bool:
    if isinstance(error, StorageError | PermissionError | FileNotFoundError):
        return False
    if getattr(error, "status", None) in (401, 403):
        return False
    return isinstance(error, OSError | EOFError) or type(error).__module__.split(".")[0] in _TRANSIENT_MODULES


def _refusal(url: str, error: Exception) -> Exception:
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"{url} was listed but is not there any more; run again to list anew")
    if isinstance(error, PermissionError) or getattr(error, "status", None) in (401, 403):
        return StorageError(f"{url} may not be read: {error}; {_credentials(url)}")
    if isinstance(error, StorageError):
        return StorageError(f"{url}: {error}; run again to list anew")
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
