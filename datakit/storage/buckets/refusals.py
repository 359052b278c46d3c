"""Says what to do if a store denies access to a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from datakit.errors import RootError
from datakit.store_access import GCS, StoreAccess, kind_of_store

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE)",
    GCS: "GOOGLE_APPLICATION_CREDENTIALS",
}


@contextmanager
def access_errors(url: str, access: StoreAccess) -> Iterator[None]:
    """Raise RootError, with advice, if the store denies access within the block."""
    try:
        yield
    except PermissionError as error:
        raise RootError(f"access to {url} was denied ({error.strerror or error}); {advice(url, access)}") from error
    except ValueError as error:  # gcsfs's error for a bucket whose readers pay
        if "requester pays" not in str(error):
            raise
        raise RootError(f"access to {url} was denied; {advice(url, access)}") from error


def advice(url: str, access: StoreAccess) -> str:
    """Return the part of an error message that says what to check or to set."""
    if access.anonymous:
        return "the data is not public, so remove `anonymous` from the source and set credentials"
    advised = f"check {_CREDENTIALS[kind_of_store(url)]}"
    if access.requester_pays:
        return f"{advised}, and that their account may be charged"
    return f"{advised}; if the owner lets readers pay, set `requester_pays = true` for the source"
