"""Calls the Hub's client library patiently, and translates its failures.

The library retries some requests itself (LFS batches, uploads of parts), but neither the creation of a repository nor
its description nor a commit. Every call therefore goes through `patiently`, which tries again after an answer of 429 or
5xx and after a cut connection. It waits for the time that the server names in `Retry-After`, or else for a growing time
with some randomness, so that several publishers do not return together.

Messages of the library quote URLs that contain signatures. A datakit error says what was attempted and the status, and
has no more of the message than `redaction.py` lets pass.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from datakit.errors import DatakitError, RootError, StorageError, UsageError, chain_of
from datakit.storage.io_errors import HTTP_CLIENTS

T = TypeVar("T")
TOKEN = "HF_TOKEN"
ENDPOINT = "HF_ENDPOINT"
BUSY = (408, 429, 500, 502, 503, 504)
WAITS = (1.0, 4.0, 16.0)  # seconds before the second, third and fourth try
LONGEST_WAIT = 300.0  # seconds; a server that asks for more is not waited for
INSTALL = "no client for hf:// is installed; run pip install '.[hf]' in datakit's checkout"


def new_client() -> Any:
    """Return an HfApi with the token and the endpoint of the environment. Raises UsageError if there is no token, and
    RootError if the library is missing.
    """
    token = os.environ.get(TOKEN)
    if not token:
        raise UsageError(
            f"publishing on the Hub needs a token with write access in the environment variable {TOKEN}; create one in "
            "the settings of your account on the Hub"
        )
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        raise RootError(INSTALL) from error
    disable_progress_bars()  # publish has a progress line of its own
    return HfApi(endpoint=os.environ.get(ENDPOINT) or None, token=token)


def patiently(attempt: str, call: Callable[[], T]) -> T:
    """Return the result of a call of the Hub's library, which is repeated while the Hub is busy or unreachable.
    attempt: what the call does, for messages. Raises RootError if access is denied, and StorageError.
    """
    for wait in (*WAITS, None):
        try:
            return call()
        except DatakitError:
            raise
        except Exception as error:  # noqa: BLE001 - the library lets errors of several clients pass
            pause = pause_after(error, wait)
            if pause is None:
                raise failure(attempt, error) from None
            time.sleep(pause)
    raise AssertionError("unreachable: the last try returns or raises")


def failure(attempt: str, error: Exception) -> Exception:
    """Return the error of datakit for an error of the Hub's library; `error` itself if it is not one of the library."""
    status = status_of(error)
    if status in (401, 403):
        return RootError(
            f"the Hub denied access ({status}) when datakit tried to {attempt}; check that {TOKEN} is valid and may "
            "write in this organization or account"
        )
    if status is not None:
        return StorageError(f"the Hub answered {status} when datakit tried to {attempt}; run the same command again")
    if _is_of_client(error):
        return StorageError(
            f"no answer from the Hub when datakit tried to {attempt} ({type(error).__name__}); run the same command "
            "again, which transfers only what is missing"
        )
    if isinstance(error, ValueError | RuntimeError):  # how the library reports what the Hub refuses in a valid answer
        return StorageError(f"the Hub's library failed when datakit tried to {attempt}: {error}")
    return error


def status_of(error: Exception) -> int | None:
    """Return the HTTP status behind an error of the Hub's library; None if there is none."""
    for one in chain_of(error):
        status = getattr(getattr(one, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return None


def pause_after(error: Exception, wait: float | None) -> float | None:
    """Return the seconds to wait before the next try; None if there is none. wait: the usual time; None after the last
    try.
    """
    status = status_of(error)
    if wait is None or (status not in BUSY if status is not None else not _is_of_client(error)):
        return None
    asked = _retry_after(error)
    if asked is not None:
        return asked if asked <= LONGEST_WAIT else None
    return wait * random.uniform(0.5, 1.5)


def _retry_after(error: Exception) -> float | None:
    for one in chain_of(error):
        headers = getattr(getattr(one, "response", None), "headers", None)
        value = headers.get("retry-after") if headers is not None else None
        if value is not None and value.isdigit():
            return float(value)
    return None


def _is_of_client(error: Exception) -> bool:
    return any(type(one).__module__.partition(".")[0] in HTTP_CLIENTS for one in chain_of(error))
