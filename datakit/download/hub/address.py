"""Splits `hf://` URLs: the repository, its revision, and the file, the folder or the pattern within it.

    hf://datasets/ORGANIZATION/NAME@REVISION/PATH     hf://spaces/...     hf://ORGANIZATION/NAME/... (a model)

A revision is a branch, a tag or a commit. A slash in its name is written as `%2F`, except in `refs/convert/...` and
`refs/pr/...`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

from datakit.errors import RootError

COMMIT = re.compile("[0-9a-f]{40}")
KINDS = {"datasets": "dataset", "spaces": "space"}  # the first part of the path -> the client's name of the kind
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
URL = re.compile(
    rf"hf://(?P<kind>datasets/|spaces/|)(?!(?:datasets|spaces)/)(?P<name>{NAME}/{NAME})"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/@]+|[^/@]+))?(?:/(?P<path>.*))?",
    re.DOTALL,
)


@dataclass(frozen=True)
class HubAddress:
    """A place in a repository. kind: `dataset`, `space` or `model`. revision: "" if the URL names none."""

    kind: str
    repository: str
    revision: str = ""
    path: str = ""

    @property
    def shown(self) -> str:
        """The kind and the name of the repository, for messages."""
        return f"{self.kind} {self.repository}"

    def page(self, endpoint: str) -> str:
        """Return the address of the repository's page."""
        folder = "" if self.kind == "model" else f"{self.kind}s/"
        return f"{endpoint}/{folder}{self.repository}"

    def at(self, revision: str, path: str = "") -> HubAddress:
        """Return the address of a path at a revision of the same repository."""
        return replace(self, revision=revision, path=path)

    def url(self) -> str:
        """Return the address as a URL.

        >>> parse("hf://datasets/a/b@refs%2Fpr%2F1/c").url()
        'hf://datasets/a/b@refs%2Fpr%2F1/c'
        """
        folder = "" if self.kind == "model" else f"{self.kind}s/"
        revision = f"@{quote(self.revision, safe='')}" if self.revision else ""
        return f"hf://{folder}{self.repository}{revision}" + (f"/{self.path}" if self.path else "")


def parse(url: str) -> HubAddress:
    """Split a URL. Raises RootError.

    >>> parse("hf://datasets/HuggingFaceFW/fineweb@v1.0.0/data/*/*.parquet").path
    'data/*/*.parquet'
    """
    found = URL.fullmatch(url)
    if found is None:
        raise RootError(
            f"{url} is not an address on the Hub; write hf://datasets/ORGANIZATION/NAME@REVISION/PATH, where the "
            "revision and the path may be left out"
        )
    kind = KINDS.get(found["kind"].rstrip("/"), "model")
    return HubAddress(kind, found["name"], unquote(found["revision"] or ""), (found["path"] or "").strip("/"))
