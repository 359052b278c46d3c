"""Makes requests to Google Cloud Storage with gcsfs: pages and descriptions through its own function for requests, and
the bytes of objects through its session, since its own functions return whole blocks only.

Objects are requested as they are stored: a file that was uploaded as gzip with `Content-Encoding: gzip` would otherwise
arrive decompressed, with another size than the listed one. Redirects are not followed, so the token stays where it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from datakit.errors import StorageError

BUSY = (408, 429, 500, 502, 503, 504)  # answers of a store that may give another one later
CONNECT_SECONDS, READ_SECONDS = 20.0, 60.0
NAMES_SHOWN = 200  # characters of an answer


def list_page(file_system: Any, bucket: str, prefix: str, keys: int, token: str) -> dict[str, Any]:
    """Return the answer of `objects.list`. Raises FileNotFoundError, PermissionError or StorageError."""
    about = {"prefix": prefix or None, "maxResults": keys, "pageToken": token or None}
    answer = _called(file_system, "b/{}/o", bucket, **about)
    if not isinstance(answer, dict) or answer.get("kind") != "storage#objects":
        raise StorageError(f"the listing of bucket {bucket} is not one of Google Cloud Storage; check the endpoint")
    return answer


def describe(file_system: Any, bucket: str, key: str) -> dict[str, Any] | None:
    """Return the answer of `objects.get`, or None if there is no such object."""
    try:
        return _called(file_system, "b/{}/o/{}", bucket, key)
    except FileNotFoundError:
        return None


def _called(file_system: Any, path: str, *names: str, **parameters: Any) -> Any:
    try:
        return file_system.call("GET", path, *names, json_out=True, **parameters)
    except json.JSONDecodeError as error:
        raise StorageError(f"an answer about bucket {names[0]} is incomplete or not JSON; run again") from error
    except OSError as error:
        if str(error).startswith("Forbidden"):  # gcsfs's error for the status 403 has no type of its own
            raise PermissionError(13, _first_line(str(error))) from error
        raise


@contextmanager
def opened(file_system: Any, bucket: str, key: str, start: int) -> Iterator[Any]:
    """Request an object from byte `start` on; yield the response, whose body is asynchronous. Raises FileNotFoundError,
    PermissionError, ConnectionError for an answer that may pass, or OSError.
    """
    from fsspec.asyn import sync

    response: Any = sync(file_system.loop, _get, file_system, bucket, key, start)
    try:
        if response.status not in (200, 206):
            raise _refusal(response.status, key)
        yield response
    finally:
        file_system.loop.call_soon_threadsafe(response.close)


async def _get(file_system: Any, bucket: str, key: str, start: int) -> Any:
    import aiohttp
    from yarl import URL

    session = await file_system._set_session()
    address = f"{file_system._location}/download/storage/v1/b/{quote(bucket, safe='')}/o/{quote(key, safe='')}"
    ranged = {"Range": f"bytes={start}-"} if start else {}
    return await session.get(
        URL(address, encoded=True),
        params=file_system._get_params({"alt": "media"}),
        headers=file_system._get_headers({"Accept-Encoding": "gzip", **ranged}),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS),
        allow_redirects=False,
        auto_decompress=False,
    )


def _refusal(status: int, key: str) -> OSError:
    if status == 404:
        return FileNotFoundError(key)
    if status in (401, 403):
        return PermissionError(13, f"the store answered with status {status}")
    if status in BUSY:
        return ConnectionError(f"the store answered with status {status}")
    return OSError(22, f"the store answered with status {status}")


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")[:NAMES_SHOWN]
