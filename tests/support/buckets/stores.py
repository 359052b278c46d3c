"""Buckets in S3 and in Google Cloud Storage, each on a server of its own behind a proxy, with one interface for tests.

@pytest.fixture(params=KINDS)
def store(request) -> Iterator[Store]:
    with bucket_store(request.param) as store:
        yield store
"""

from __future__ import annotations

import http.client
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from datakit.store_access import USUAL, StoreAccess
from tests.support.buckets.gcs import gcs_server
from tests.support.buckets.proxy import TOKEN_PATH, BucketProxy, bucket_proxy
from tests.support.s3 import s3_server

KINDS = ("s3", "gs")
BUCKET = "shelf"
# moto requires a signature to replace or remove an object, but does not verify it
SIGNED = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
BOUNDARY = b"datakit-0123456789abcdef"


@dataclass(frozen=True)
class Store:
    """A bucket. server: the address behind the proxy, where tests write without being noted."""

    kind: str
    proxy: BucketProxy
    server: str

    @property
    def url(self) -> str:
        """The URL of the source's folder."""
        return f"{self.kind}://{BUCKET}/source"

    @property
    def access(self) -> StoreAccess:
        """The usual access."""
        return USUAL

    def put(self, path: str, data: bytes, public: bool = False) -> None:
        """Write an object of the source. public: in S3, anybody may read it (the other emulator lets anybody read)."""
        if self.kind == "s3":
            allowed = {"x-amz-acl": "public-read"} if public else {}
            self._request("PUT", f"/{BUCKET}/{quote(f'source/{path}')}", data, allowed)
            return
        about = json.dumps({"name": f"source/{path}"}).encode()
        parts = ((b"application/json", about), (b"application/octet-stream", data))
        body = b"".join(b"--%s\r\nContent-Type: %s\r\n\r\n%s\r\n" % (BOUNDARY, kind, part) for kind, part in parts)
        place = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=multipart"
        headers = {"Content-Type": f"multipart/related; boundary={BOUNDARY.decode()}"}
        self._request("POST", place, body + b"--%s--" % BOUNDARY, headers)

    def _request(self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Make a request without a client that changes paths such as `a/../b`."""
        connection = http.client.HTTPConnection(urlsplit(self.server).netloc, timeout=60)
        try:
            connection.request(method, target, body, {"Authorization": SIGNED, **(headers or {})})
            answer = connection.getresponse()
            assert answer.status < 300, (answer.status, answer.read())
        finally:
            connection.close()

    def put_all(self, files: Mapping[str, bytes]) -> None:
        """Write several objects."""
        for path, data in files.items():
            self.put(path, data)

    def remove(self, path: str) -> None:
        """Remove an object of the source."""
        place = f"/{BUCKET}/{quote(f'source/{path}')}"
        if self.kind == "gs":
            place = f"/storage/v1/b/{BUCKET}/o/{quote(f'source/{path}', safe='')}"
        self._request("DELETE", place)


@contextmanager
def bucket_store(kind: str, holding: str = "") -> Iterator[Store]:
    """Start a server with a bucket and a proxy, and point this process's environment to the proxy. holding: a local
    directory with the files that the source has from the start; "" for an empty bucket.
    """
    if kind == "gs":
        pytest.importorskip("gcsfs", reason="needs gcsfs and gcp-storage-emulator: pip install '.[dev]'")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "STORAGE_EMULATOR"))]:
            patch.delenv(name)
        with _server(kind, patch, holding) as server, bucket_proxy(server) as proxy:
            if kind == "s3":
                patch.setenv("AWS_ENDPOINT_URL", proxy.address)
            else:
                patch.setenv("STORAGE_EMULATOR_HOST", proxy.address)
                patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", _service_account(folder, proxy.address))
            _forget_clients(kind)
            store = Store(kind, proxy, server)
            if holding and kind == "gs":
                store.put_all({path.name: path.read_bytes() for path in Path(holding).iterdir()})
            try:
                yield store
            finally:
                _forget_clients(kind)


@contextmanager
def another_store(kind: str) -> Iterator[Store]:
    """Start a further server and a proxy, without pointing anything to them."""
    with s3_server(BUCKET, "source") if kind == "s3" else gcs_server(BUCKET) as found:
        server = found if isinstance(found, str) else found["AWS_ENDPOINT_URL"]
        with bucket_proxy(server) as proxy:
            yield Store(kind, proxy, server)


@contextmanager
def _server(kind: str, patch: pytest.MonkeyPatch, holding: str) -> Iterator[str]:
    if kind == "s3":
        with s3_server(BUCKET, "source", holding=holding) as variables:
            for name, value in variables.items():
                patch.setenv(name, value)
            yield variables["AWS_ENDPOINT_URL"]
        return
    with gcs_server(BUCKET) as address:
        yield address


def _service_account(folder: str, address: str) -> str:
    """Write the file of a service account whose tokens the proxy gives; return its path."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    account = {
        "type": "service_account", "project_id": "reader", "private_key_id": "1", "client_id": "1",
        "client_email": "reader@example.org", "token_uri": f"{address}{TOKEN_PATH}",
        "private_key": key.private_bytes(*form).decode(),
    }  # fmt: skip
    path = os.path.join(folder, "account.json")
    with open(path, "w") as file:
        json.dump(account, file)
    return path


def _forget_clients(kind: str) -> None:
    import fsspec

    fsspec.get_filesystem_class(kind).clear_instance_cache()  # they keep the endpoint with which they were made
