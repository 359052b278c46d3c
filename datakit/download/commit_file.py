"""Remembers, in the root, which commit a branch or a tag of a Hub repository stood for when a download began, so that
the next run continues this download rather than begin one of another commit. The file is `.cache/commit-<source>-<12
digits of the fingerprint>`.
"""

from __future__ import annotations

from datakit.download.hashes import hash_folder
from datakit.download.hub.address import COMMIT
from datakit.errors import NotFoundError
from datakit.storage import urls
from datakit.storage.atomic import replace_bytes
from datakit.storage.fingerprint import short


class CommitFile:
    """The commit of one download."""

    def __init__(self, root: str, source: str, fingerprint: str) -> None:
        self.url: str = urls.join(hash_folder(root), f"commit-{source}-{short(fingerprint)}")

    def read(self) -> str:
        """Return the commit, or "" if none is remembered."""
        try:
            commit = urls.read_bytes(self.url).decode("ascii", "replace").strip()
        except NotFoundError:
            return ""
        return commit if COMMIT.fullmatch(commit) else ""

    def write(self, commit: str) -> None:
        """Remember a commit."""
        if self.read() != commit:
            replace_bytes(f"{commit}\n".encode(), self.url)
