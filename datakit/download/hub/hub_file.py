"""Says how a file of a repository is requested, and checks what the Hub states about it when it is requested.

A file is requested at its commit. The Hub answers with its content, or with a redirect to the store of large files. In
both cases it names the commit, and the size and the hash of a large file, which must be those of the listing. Xet, the
Hub's newer protocol for large files, is not used: over HTTP the Hub serves every file whole or by ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from datakit.download.hub.address import HubAddress
from datakit.download.hub.api import borders, endpoint, refusal, request_headers
from datakit.download.web.content_hash import GIT_SHA1
from datakit.download.web.requests import RemoteFile
from datakit.errors import ChangedInputError, DatakitError, NotFoundError


def remote_file(place: HubAddress, size: int, content: str, private: bool) -> RemoteFile:
    """Return what a transfer needs to know. place: names a commit and a file."""
    return RemoteFile(
        url=f"{place.page(endpoint())}/resolve/{place.revision}/{quote(place.path)}",
        name=place.url(),
        borders=borders(private),
        size=size,
        headers=request_headers(),
        content=content,
        refuse=partial(_refused, place),
        check_first=partial(_check, place, size, content),
    )


def _refused(place: HubAddress, status: int, headers: Any) -> DatakitError:
    if status in (404, 410) and headers.get("x-error-code", "EntryNotFound") == "EntryNotFound":
        return NotFoundError(f"{place.url()} was listed but no longer exists; run again to list the source again")
    return refusal(place, status, headers)


def _check(place: HubAddress, size: int, content: str, headers: Mapping[str, str]) -> None:
    algorithm, _, listed = content.partition(":")
    stated = {
        "commit": (headers.get("x-repo-commit"), place.revision),
        "size": (headers.get("x-linked-size"), str(size)),
        "hash": (_hash(headers.get("x-linked-etag"), algorithm), listed),
    }
    for what, (now, expected) in stated.items():
        if now and now != expected:
            raise ChangedInputError(
                f"{place.url()}: the Hub now states another {what} ({now}) than when it was listed ({expected}); run "
                "again to list the source again"
            )


def _hash(etag: str | None, algorithm: str) -> str | None:
    """Return the hash in an ETag, or None if the ETag is not a hash of this kind."""
    text = (etag or "").removeprefix("W/").strip('"')
    return text if len(text) == (40 if algorithm == GIT_SHA1 else 64) else None
