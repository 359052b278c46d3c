"""Makes single requests to a bucket: a page of its listing, the description of an object, and an object's bytes.

The requests are made by s3fs and gcsfs, which know credentials, signatures and endpoints and repeat a request that a
busy store has refused. Their functions for whole listings and files are not used. Those drop what the store says about
its own answer: whether a listing ends here, which version of an object was sent, and how long the object is. And if a
connection breaks, they request the whole block again, and lose what has arrived of it.

Cost: one request per call, and some 100 us for each MiB of an object.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from datakit.errors import StorageError
from datakit.storage import urls
from datakit.storage.buckets import gcs_requests
from datakit.storage.buckets.answers import Description, ObjectBytes, Page, described, sent_range, stated_md5
from datakit.storage.buckets.chunks import chunks_of
from datakit.store_access import GCS, USUAL, StoreAccess, kind_of_store


class Bucket(Protocol):
    """A bucket of any kind."""

    def page(self, prefix: str, keys: int, token: str) -> Page:
        """Return a page of the listing of all keys that start with `prefix`. keys: how many the page may hold. token:
        that of the page before; "" for the first page. Raises FileNotFoundError if there is no such bucket.
        """
        ...

    def describe(self, key: str) -> Description | None:
        """Return the size and the checksum of an object, or None if there is no such object."""
        ...

    def read(self, key: str, start: int) -> AbstractContextManager[ObjectBytes]:
        """Request an object from byte `start` to its end. Raises FileNotFoundError."""
        ...


def open_bucket(url: str, access: StoreAccess = USUAL) -> tuple[Bucket, str]:
    """Return the bucket of a URL, and the URL's key. Raises RootError if the store's client is not installed."""
    file_system, path = urls.filesystem(url, access)
    name, key, _ = file_system.split_path(path)
    return (GcsBucket if kind_of_store(url) == GCS else S3Bucket)(file_system, name), key


@dataclass(frozen=True)
class S3Bucket:
    """A bucket in S3 or in a store with the same interface."""

    file_system: Any  # an S3FileSystem
    name: str

    def page(self, prefix: str, keys: int, token: str) -> Page:
        """Return a page of the listing."""
        more = {"ContinuationToken": token} if token else {}
        answer = self.file_system.call_s3("list_objects_v2", Bucket=self.name, Prefix=prefix, MaxKeys=keys, **more)
        objects = tuple(
            described(self.name, one.get("Key"), one.get("Size"), one.get("ETag")) for one in _contents(answer)
        )
        return Page(
            objects, answer.get("NextContinuationToken") or "", answer.get("IsTruncated"), answer.get("KeyCount")
        )

    def describe(self, key: str) -> Description | None:
        """Return the size and the checksum of an object, or None if there is no such object."""
        try:
            answer = self.file_system.call_s3("head_object", Bucket=self.name, Key=key)
        except FileNotFoundError:
            return None
        return described(self.name, key, answer.get("ContentLength"), answer.get("ETag"))

    @contextmanager
    def read(self, key: str, start: int) -> Iterator[ObjectBytes]:
        """Request an object. Without a range, the client also compares the content with the store's checksum of it."""
        ranged = {"Range": f"bytes={start}-"} if start else {}
        answer = self.file_system.call_s3("get_object", Bucket=self.name, Key=key, **ranged)
        body = answer["Body"]
        try:
            first, total = sent_range(answer.get("ContentRange"), answer.get("ContentLength"))
            checksum = (answer.get("ETag") or "").strip('"')
            yield ObjectBytes(first, total, checksum, "", chunks_of(self.file_system.loop, body.read))
        finally:
            body.close()


def _contents(answer: dict[str, Any]) -> list[dict[str, Any]]:
    contents = answer.get("Contents") or []
    if not isinstance(contents, list):
        raise StorageError("a page of the listing has no list of objects; run again")
    return contents


@dataclass(frozen=True)
class GcsBucket:
    """A bucket in Google Cloud Storage."""

    file_system: Any  # a GCSFileSystem
    name: str

    def page(self, prefix: str, keys: int, token: str) -> Page:
        """Return a page of the listing."""
        answer = gcs_requests.list_page(self.file_system, self.name, prefix, keys, token)
        objects = tuple(
            described(self.name, one.get("name"), one.get("size"), one.get("etag")) for one in answer.get("items", ())
        )
        token = answer.get("nextPageToken") or ""
        return Page(objects, token, bool(token), None)

    def describe(self, key: str) -> Description | None:
        """Return the size and the checksum of an object, or None if there is no such object."""
        answer = gcs_requests.describe(self.file_system, self.name, key)
        return None if answer is None else described(self.name, key, answer.get("size"), answer.get("etag"))

    @contextmanager
    def read(self, key: str, start: int) -> Iterator[ObjectBytes]:
        """Request an object as it is stored. The answer does not state the version by which the listing names it."""
        with gcs_requests.opened(self.file_system, self.name, key, start) as answer:
            first, total = sent_range(answer.headers.get("Content-Range"), answer.headers.get("Content-Length"))
            md5 = stated_md5(answer.headers.getall("x-goog-hash", ()))
            yield ObjectBytes(first, total, "", md5, chunks_of(self.file_system.loop, answer.content.read))
