"""Translates failures of disks and object stores (full disk, missing bucket, permissions, credentials, no answer) into
datakit's errors, whose messages say what to do next.

Failures reported by the operating system appear as OSError. The client libraries of object stores (botocore, aiohttp,
...) also raise exceptions of their own, which have no common base class. Only these exceptions and OSError are
translated; an exception from a bug in our code keeps its type.
"""

from __future__ import annotations

import errno
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from datakit.errors import DatakitError, NoSpaceError, NotFoundError, RootError, StorageError, chain_of
from datakit.redaction import redacted
from datakit.signed_urls import split_query

SPACE = (errno.ENOSPC, errno.EDQUOT)
PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
MISSING = (404, 410)  # a server's answers for a file that does not exist
HTTP_CLIENTS = ("aiohttp", "httpx", "httpx2", "urllib3")
DRIVERS = (*HTTP_CLIENTS, "aiobotocore", "botocore", "fsspec", "gcsfs", "google", "huggingface_hub", "s3fs")

NEW_SIGNATURE = (
    "if its query string is a signature, the signature may have expired: put a newly signed URL into the recipe and "
    "run again; finished work is kept"
)


@contextmanager
def read_errors(url: str) -> Iterator[None]:
    """Translate errors in reading `url`. Raises NotFoundError, StorageError, RootError or NoSpaceError."""
    try:
        yield
    except Exception as error:
        _raise_ours(_not_found(error, url) or translated(http_failure(error), url, "read"), error)
        raise


@contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Translate errors in writing `url`. Raises RootError, StorageError or NoSpaceError."""
    try:
        yield
    except Exception as error:
        _raise_ours(translated(error, url, "write"), error)
        raise


@contextmanager
def scratch_errors(path: Path) -> Iterator[None]:
    """Translate errors in writing scratch files, which are always on the temporary disk. Raises NoSpaceError."""
    try:
        yield
    except OSError as error:
        if error.errno in SPACE:
            raise _temporary_full(str(path), "write") from error
        raise


def _raise_ours(ours: DatakitError | None, error: Exception) -> None:
    """Raise `ours`, unless it is None, with `shareable(error)` as its cause."""
    try:
        if ours is not None:
            raise ours from shareable(error)
    finally:
        del ours  # breaks the reference cycle of `ours`, its traceback and this frame, which would keep files open


def _not_found(error: Exception, url: str) -> NotFoundError | None:
    missing = isinstance(http_failure(error), FileNotFoundError)
    return NotFoundError(f"{url} does not exist") if missing else None


def http_failure(error: Exception) -> Exception:
    """Return the actual failure, such as denied access or no answer, if `error` is fsspec's FileNotFoundError for an
    HTTP URL, but the server did not report the file as missing. Otherwise, return `error`.
    """
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or not isinstance(cause, Exception):
        return error
    by_client = type(cause).__module__.partition(".")[0] in HTTP_CLIENTS
    return cause if by_client and getattr(cause, "status", None) not in MISSING else error


def denies_access(error: Exception) -> bool:
    """Return True if `error` says that a store or a server refused the credentials or the URL's signature."""
    return isinstance(error, PermissionError) or getattr(error, "status", None) in (401, 403)


def shareable(error: BaseException) -> BaseException:
    """Return the exception to set as the cause of a datakit error: `error` or, if any message in its chain of
    exceptions contains a secret, a substitute without secrets. Python prints this cause, too, with its traceback.
    """
    if all(redacted(text) == text for text in map(str, chain_of(error))):
        return error
    shown = redacted("".join(traceback.format_exception(error)))
    return DatakitError(f"{type(error).__name__}, without its secrets:\n{shown}")


def _is_of_driver(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in DRIVERS


@contextmanager
def unless_read_only() -> Iterator[None]:
    """Suppress the error if the `with` block is not allowed to write (no permission, or a disk mounted read-only). Use
    this function only for writes that a run can do without, such as the removal of leftovers.
    """
    try:
        yield
    except RootError:
        return
    except OSError as error:
        if error.errno not in PERMISSION:
            raise


def translated(error: Exception, url: str, verb: str) -> DatakitError | None:
    """Return datakit's error for a failure of the system or the store, or None if `error` is anything else."""
    if isinstance(error, OSError):
        return _of_system(error, url, verb)
    kind = type(error)
    if not _is_of_driver(error):
        return None
    if denies_access(error) and split_query(url)[1]:
        return RootError(f"access to {url} was denied ({error}); {NEW_SIGNATURE}")
    if "Credentials" in kind.__name__:
        return RootError(
            f"cannot {verb} {url}: {error}; set the store's credentials (AWS_ACCESS_KEY_ID, ...) or a profile"
        )
    if "Connect" in kind.__name__ or "Timeout" in kind.__name__:
        return _unreachable(error, url, verb)
    return StorageError(f"cannot {verb} {url}: {kind.__name__}: {error}")


def _of_system(error: OSError, url: str, verb: str) -> DatakitError:
    if error.errno in SPACE:
        if "://" in url and not url.startswith("file://"):
            # an object store never fills up, so the disk of temporary files is full
            return _temporary_full(url, verb)
        where = f" ({error.filename})" if error.filename else ""
        advice = "free some space (the next run continues from here), or choose another --root"
        return NoSpaceError(f"no space left to {verb} {url}{where}; {advice}")
    if isinstance(error, PermissionError) or error.errno in PERMISSION:
        advice = "choose another --root or change its permissions" if verb == "write" else "change its permissions"
        return RootError(f"no permission to {verb} {url} ({error.strerror or error}); {advice}")
    if isinstance(error, ConnectionError | TimeoutError):
        return _unreachable(error, url, verb)
    if isinstance(error, FileNotFoundError) and "bucket" in str(error).lower():
        return RootError(f"cannot {verb} {url}: {error}; create the bucket or choose another --root")
    return StorageError(f"cannot {verb} {url}: {error}")


def _temporary_full(what: str, verb: str) -> NoSpaceError:
    advice = "free some space, or set TMPDIR to a larger disk; the next run continues from here"
    return NoSpaceError(f"no space left to {verb} {what} on the temporary disk ({tempfile.gettempdir()}); {advice}")


def _unreachable(error: Exception, url: str, verb: str) -> StorageError:
    advice = "check the network and the endpoint (AWS_ENDPOINT_URL); the next run continues from here"
    return StorageError(f"cannot {verb} {url}: the store does not answer ({error}); {advice}")
