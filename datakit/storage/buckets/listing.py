"""Lists all objects below a folder of a bucket, page by page, and refuses a listing that contradicts itself.

A client that follows the pages blindly loses objects without a sign: if the token of the next page is missing, the
listing simply ends. So a page that says that more follow has to name a token, no token may occur twice, the objects
of a page are counted against the number that the page states, and each key must start with the prefix that was asked
for and occur once. What cannot be seen in one listing (a page that was left out together with all that refers to it, or
an old answer of a cache) can be seen in a second one. It is asked for with another page size, so its pages end at other
keys, and no cache has answers to its requests.

Cost: one request per PAGE_KEYS objects.
"""

from __future__ import annotations

from collections.abc import Iterator

from datakit.errors import StorageError
from datakit.printable import one_line
from datakit.storage import urls
from datakit.storage.buckets.answers import Description, Page
from datakit.storage.buckets.bucket import Bucket, open_bucket
from datakit.storage.buckets.refusals import access_errors
from datakit.storage.io_errors import read_errors
from datakit.storage.urls import FileInfo
from datakit.store_access import USUAL, StoreAccess, kind_of_store

PAGE_KEYS, OTHER_PAGE_KEYS = 1000, 900  # the most that S3 puts into a page, and another number for the second look
AGAIN = "run again; if the error stays, ask the operator of the store, or of the proxy or cache in front of it"


def is_bucket(url: str) -> bool:
    """Return True if a URL is that of a store whose listings this module checks."""
    return bool(kind_of_store(url))


def describe(url: str, access: StoreAccess = USUAL) -> FileInfo | None:
    """Return what the store says about the object at a URL; None if there is none. Raises RootError, StorageError."""
    with read_errors(url), access_errors(url, access):
        bucket, key = open_bucket(url, access)
        found = bucket.describe(key) if key else None
    return found and FileInfo(url, urls.name(url), found.size, found.checksum)


def objects_below(url: str, access: StoreAccess = USUAL, page_keys: int = PAGE_KEYS) -> list[FileInfo]:
    """Return all objects below the folder at `url`, including hidden ones, with their keys unchanged; none if there is
    no such bucket. Empty objects whose keys end with a slash are left out: they only mark folders. Raises StorageError
    for a listing that contradicts itself, and RootError if access is denied.
    """
    with read_errors(url), access_errors(url, access):
        bucket, folder = open_bucket(url, access)
        prefix = f"{folder.rstrip('/')}/" if folder else ""
        try:
            found = list(_objects(bucket, prefix, url, page_keys))
        except FileNotFoundError:
            return []
    return [_info(url, prefix, one) for one in found if one.size or not one.key.endswith("/")]


def _info(url: str, prefix: str, one: Description) -> FileInfo:
    path = one.key.removeprefix(prefix) or "/"  # an object with the name of the folder, which no client can read
    return FileInfo(urls.child(url, path), path, one.size, one.checksum)


def _objects(bucket: Bucket, prefix: str, url: str, page_keys: int) -> Iterator[Description]:
    keys = set[str]()
    for number, page in enumerate(_pages(bucket, prefix, url, page_keys), start=1):
        if page.count is not None and page.count != len(page.objects):
            raise _contradiction(url, f"page {number} states {page.count} objects, but has {len(page.objects)}")
        for one in page.objects:
            if not one.key.startswith(prefix):
                raise _contradiction(url, f"page {number} has the key {one_line(one.key)}, which is not in the folder")
            if one.key in keys:
                raise _contradiction(url, f"page {number} lists {one_line(one.key)} a second time")
            keys.add(one.key)
            yield one


def _pages(bucket: Bucket, prefix: str, url: str, page_keys: int) -> Iterator[Page]:
    token, seen, number = "", set[str](), 0
    while True:
        page = bucket.page(prefix, page_keys, token)
        number, token = number + 1, page.token
        yield page
        if page.more is None:
            raise _contradiction(url, f"page {number} does not say whether another page follows")
        if not page.more:
            return
        if not token:
            raise _contradiction(url, f"page {number} says that another page follows, but does not say which")
        if token in seen:
            raise _contradiction(url, f"page {number} leads back to an earlier page")
        seen.add(token)


def _contradiction(url: str, what: str) -> StorageError:
    return StorageError(f"the listing of {url} is not complete or not right: {what}; {AGAIN}")
