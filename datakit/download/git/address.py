"""Parses the URLs of Git repositories: `git+https://host/path@revision` and `git+file:///path@revision`.

The revision is a branch, a tag or a full commit id; without one, it is the repository's HEAD. Its characters are
restricted, so that it can never be taken for an option of `git`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from datakit.errors import RootError
from datakit.signed_urls import user_info_mistake

PREFIX = "git+"
SCHEMES = ("https", "file")
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]*")


@dataclass(frozen=True)
class Address:
    """A repository and a revision. url: the URL that `git` gets. revision: None for HEAD."""

    url: str
    revision: str | None

    @property
    def scheme(self) -> str:
        """The protocol by which the repository is reached."""
        return self.url.partition("://")[0]

    @property
    def name(self) -> str:
        """The repository's name, with safe characters only."""
        last = self.url.rstrip("/").rpartition("/")[2].removesuffix(".git")
        return re.sub(r"[^A-Za-z0-9_-]", "-", last) or "repository"


def is_git(url: str) -> bool:
    """Return True if a URL names a Git repository."""
    return url.startswith(PREFIX)


def pinned_repository(url: str, commit: str) -> str:
    """Return the URL of a repository at a commit. Raises RootError if the URL already has a revision, or if `commit` is
    not a full commit id: anything else may mean another commit tomorrow.
    """
    if parse(url).revision is not None or not COMMIT.fullmatch(commit):
        raise RootError(
            f"{url}: `revision` must be a full commit id, of a URL without a revision; write a branch or a tag into "
            "the URL, as in ...@v1.0, so that each run looks up its commit"
        )
    return f"{url}@{commit}"


def parse(url: str) -> Address:
    """Parse the URL of a repository. Raises RootError.

    >>> parse("git+https://host/org/name.git@v1.0")
    Address(url='https://host/org/name.git', revision='v1.0')
    >>> parse("git+file:///srv/name").revision is None
    True
    """
    mistake = user_info_mistake(url.removeprefix(PREFIX))
    if mistake:
        raise RootError(mistake)
    scheme, splitter, rest = url.removeprefix(PREFIX).partition("://")
    if scheme not in SCHEMES or not splitter:
        raise RootError(f"{url}: a Git repository must have a URL that begins with git+https:// or git+file://")
    if "?" in rest or "#" in rest:
        raise RootError(
            f"{PREFIX}{scheme}://{re.split('[?#]', rest)[0]}: the URL of a Git repository cannot have a query string; "
            "credentials come from ~/.netrc"
        )
    path, at, revision = rest.rpartition("@")
    if not at:
        return Address(f"{scheme}://{rest}", None)
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise RootError(f"{url}: {revision!r} is not a branch, a tag or a full commit id")
    return Address(f"{scheme}://{path}", revision)
