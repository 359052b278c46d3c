"""The routes of the store of large files. Like a real store, it knows only signed addresses, and nothing of the Hub."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.hub_server.repository import Repository
from tests.support.hub_server.site import Reply, Request, ranged


@dataclass
class StoreRoutes:
    """Answers the requests. expired: signatures that are no longer accepted. etag: the end of all ETags."""

    repositories: list[Repository]
    expired: set[str] = field(default_factory=set)
    etag: str = ""
    refuses_ranges: bool = False

    def __call__(self, request: Request) -> Reply | None:
        """Answer a request, or return None if there is no such file."""
        signature, content = request.query.get("X-Amz-Signature", ""), self._content(request.path[1:])
        if content is None:
            return None
        if not signature or signature in self.expired:
            return Reply(403, b"<Error>AccessDenied</Error>", kind="store")
        if self.refuses_ranges:
            return Reply(200, content, {"ETag": f'"s{self.etag}"'}, "store")
        return ranged(request, content, {"ETag": f'"s{self.etag}"'}, "store")

    def _content(self, sha256: str) -> bytes | None:
        files = (file for one in self.repositories for commit in one.commits.values() for file in commit.values())
        return next((file.content for file in files if file.large and file.sha256 == sha256), None)
