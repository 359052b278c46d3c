"""A plain web server: files below `/data/`, and an index page for each folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape

from xxhash import xxh3_64_hexdigest

from tests.support.hub_server.site import Reply, Request, Site, ranged, running

ROOT = "/data/"


@dataclass
class FolderRoutes:
    """Answers the requests. files: content by path. etags, times: what answers state about the version. ranges: False
    if every answer holds a whole file. links: further links on the first page. weak_etag: the ETag of all files.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    etags: bool = True
    times: bool = False
    ranges: bool = True
    links: list[str] = field(default_factory=list)
    weak_etag: str = ""

    def __call__(self, request: Request) -> Reply | None:
        """Answer a request, or return None if there is no such page or file."""
        if f"{request.path}/" == ROOT or any(f"{ROOT}{name}".startswith(f"{request.path}/") for name in self.files):
            return Reply(301, headers={"Location": f"{request.path}/"}, kind="redirect")
        if not request.path.startswith(ROOT):
            return None
        path = request.path.removeprefix(ROOT)
        if path in self.files:
            return self._file(request, self.files[path])
        if path == "" or (path.endswith("/") and any(name.startswith(path) for name in self.files)):
            return Reply(200, self._page(path).encode(), {"Content-Type": "text/html; charset=utf-8"}, "page")
        return None

    def _file(self, request: Request, content: bytes) -> Reply:
        headers = {"Content-Type": "application/octet-stream"}
        etag = self.weak_etag or f'"{xxh3_64_hexdigest(content)}"'
        headers |= {"ETag": etag} if self.etags else {}
        headers |= {"Last-Modified": "Wed, 01 Jul 2026 10:00:00 GMT"} if self.times else {}
        return ranged(request, content, headers, "file") if self.ranges else Reply(200, content, headers, "file")

    def _page(self, folder: str) -> str:
        below = [name.removeprefix(folder) for name in sorted(self.files) if name.startswith(folder)]
        names = dict.fromkeys(name.partition("/")[0] + ("/" if "/" in name else "") for name in below)
        links = ["?C=N;O=D", "../", *names, *(self.links if not folder else ())]
        rows = "".join(f'<tr><td><a href="{escape(link)}">{escape(link)}</a></td></tr>' for link in links)
        return f"<!DOCTYPE html><html><body><h1>Index</h1><table>{rows}</table></body></html>"


@dataclass(frozen=True)
class WebServer:
    """A running server. url: where its files are."""

    site: Site
    routes: FolderRoutes

    @property
    def url(self) -> str:
        return self.site.address + ROOT.rstrip("/")


@contextmanager
def web_server(files: dict[str, bytes] | None = None) -> Iterator[WebServer]:
    """Run a server for the block."""
    routes = FolderRoutes(dict(files or {}))
    with running(routes) as site:
        yield WebServer(site, routes)
