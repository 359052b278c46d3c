"""Defines how the files of a source in an object store are reached: with or without credentials, at whose expense, and
at which endpoint. These settings say nothing about the data, so no fingerprint depends on them; each of them can be
changed between two runs without repeating work.

    anonymous         requests are not signed and carry no token; for public data
    requester_pays    the reader pays for requests and traffic; every request states that the reader agrees
    endpoint          another service with the interface of S3 or Google Cloud Storage: R2, MinIO, a proxy

Everything else (keys, tokens, regions) comes from the environment or from the store's own configuration files, as for
any other URL. A setting that a source's store does not have is a mistake in the recipe.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from datakit.errors import RecipeError
from datakit.signed_urls import user_info_mistake

S3, GCS = "s3", "gs"
STORES = {"s3": S3, "s3a": S3, "gs": GCS, "gcs": GCS}  # protocol of a URL -> kind of store
KEYS = ("anonymous", "requester_pays", "endpoint")
PROJECTS = ("GOOGLE_CLOUD_PROJECT", "GCSFS_DEFAULT_PROJECT")  # variables that name the project that pays


@dataclass(frozen=True)
class StoreAccess:
    """The way to reach a source in an object store. endpoint: a URL without credentials; "" for the store's usual one.
    project: the Google Cloud project that pays; "" unless requester_pays is set for a bucket of Google Cloud Storage.
    """

    anonymous: bool = False
    requester_pays: bool = False
    endpoint: str = ""
    project: str = ""

    def options(self, protocol: str) -> dict[str, Any]:
        """Return the options of the client for URLs of a protocol (`s3`, `gs`, ...)."""
        found: dict[str, Any] = {"endpoint_url": self.endpoint} if self.endpoint else {}
        if STORES.get(protocol) == GCS:
            found |= {"token": "anon"} if self.anonymous else {}
            return found | ({"requester_pays": self.project or True} if self.requester_pays else {})
        found |= {"anon": True} if self.anonymous else {}
        return found | ({"requester_pays": True} if self.requester_pays else {})

    def text(self) -> str:
        """Return a text from which `from_text` makes an equal object; "" if no setting differs from its default."""
        return "" if self == USUAL else json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> StoreAccess:
        """Return the object from which `text()` was made."""
        return cls(**json.loads(text)) if text else USUAL


USUAL = StoreAccess()


def kind_of_store(url: str) -> str:
    """Return `s3` or `gs` for a URL in such a store, and "" for any other URL.

    >>> [kind_of_store(url) for url in ("s3://bucket/a", "gcs://bucket", "/data", "https://host/a")]
    ['s3', 'gs', '', '']
    """
    protocol, splitter, _ = url.partition("://")
    return STORES.get(protocol, "") if splitter else ""


def access_of(name: str, url: str, anonymous: bool, requester_pays: bool, endpoint: str | None) -> StoreAccess:
    """Return how a source is reached. name: the source's name. Raises RecipeError if requests to Google Cloud Storage
    have to name a project that pays, and none is known.
    """
    project = ""
    if requester_pays and kind_of_store(url) == GCS:
        project = next((os.environ[variable] for variable in PROJECTS if os.environ.get(variable)), "")
        if not project:
            raise RecipeError(
                f"source {name!r}: with `requester_pays`, Google Cloud Storage has to know which project pays; set "
                f"{PROJECTS[0]} to its id"
            )
    return StoreAccess(anonymous, requester_pays, endpoint.rstrip("/") if endpoint else "", project)


def access_mistake(table: Mapping[str, Any]) -> str:
    """Return a message about a source's settings of access that cannot be used, or "" if there are none. table: the
    source's table in the recipe; values of the wrong type are reported elsewhere.
    """
    url, endpoint = table.get("url"), table.get("endpoint")
    given = [key for key in KEYS if table.get(key) not in (None, False)]
    if not isinstance(url, str) or not given:
        return ""
    kind = kind_of_store(url)
    if not kind:
        keys, verb = " and ".join(f"`{key}`" for key in given), "are" if given[1:] else "is"
        return f"{keys} {verb} for sources in buckets (s3:// and gs://), which {url} is not; remove the setting"
    if table.get("anonymous") is True and table.get("requester_pays") is True:
        return "without credentials, nobody can be charged; remove `anonymous` or `requester_pays`"
    return _endpoint_mistake(endpoint, kind, table.get("anonymous") is True) if isinstance(endpoint, str) else ""


def _endpoint_mistake(endpoint: str, kind: str, anonymous: bool) -> str:
    if mistake := user_info_mistake(endpoint):
        return mistake
    example = "for example https://storage.example.org"
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, None
    if not host or parts is None or parts.scheme not in ("http", "https"):
        return f"endpoint {endpoint!r} is not an http:// or https:// URL with a host; write it in full, {example}"
    if parts.query or parts.fragment:
        return f"endpoint {endpoint.partition('?')[0]!r} has a query string or a fragment; remove it"
    if kind == GCS and parts.path.strip("/"):
        return f"endpoint {endpoint!r} has a path, which clients of Google Cloud Storage ignore; remove it"
    if kind == GCS and parts.scheme == "http" and not anonymous and not _is_this_machine(host):
        return (
            f"endpoint {endpoint!r} would get your token over a connection that is not encrypted; use https://, or set "
            "`anonymous = true`"
        )
    return ""


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
