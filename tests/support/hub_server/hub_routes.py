"""The Hub's API for reading: the description of a repository, its tree in pages, and the redirects to its files."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from tests.support.hub_server.repository import Repository, StoredFile
from tests.support.hub_server.site import Reply, Request, ranged

API = r"/api/(?P<kind>datasets|models|spaces)/(?P<name>[^/]+/[^/]+)"
INFO = re.compile(rf"{API}(?:/revision/(?P<revision>.+))?")
TREE = re.compile(rf"{API}/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?")
RESOLVE = re.compile(r"/(?P<kind>datasets/|spaces/|)(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
JSON = {"Content-Type": "application/json"}


@dataclass
class HubRoutes:
    """Answers the requests. store: the address of the store of large files. address: that of the Hub itself."""

    repositories: list[Repository]
    address: str = ""
    store: str = ""
    page_files: int = 1000
    signatures: int = 0
    next_host: str = ""  # the host that links to further pages name; "": the Hub itself
    hidden: set[str] = field(default_factory=set)  # files that the tree does not list

    def __call__(self, request: Request) -> Reply | None:
        """Answer a request, or return None if it is not one of these."""
        for pattern, action in ((TREE, self._tree), (INFO, self._info), (RESOLVE, self._resolve)):
            found = pattern.fullmatch(request.path)
            if found is not None and request.method in ("GET", "HEAD"):
                return self._answer(request, found.groupdict(), action)
        return None

    def _answer(self, request: Request, parts: dict[str, Any], action: Any) -> Reply:
        kind, wanted = action.__name__.lstrip("_"), parts["kind"].rstrip("/") or "models"
        repository = next((one for one in self.repositories if (one.kind, one.name) == (wanted, parts["name"])), None)
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if repository is None or (repository.token and token != repository.token):
            return Reply(404 if token else 401, headers={"X-Error-Code": "RepoNotFound"}, kind=kind)
        commit = repository.resolve(parts["revision"] or "main")
        if commit is None:
            return Reply(404, headers={"X-Error-Code": "RevisionNotFound"}, kind=kind)
        if repository.gated and kind == "resolve" and token not in repository.accepted:
            return Reply(403 if token else 401, headers={"X-Error-Code": "GatedRepo"}, kind=kind)
        reply: Reply = action(request, repository, commit, parts.get("path") or "")
        reply.kind = kind
        return reply

    def _info(self, request: Request, repository: Repository, commit: str, path: str) -> Reply:
        files = sorted(repository.commits[commit].items())
        blobs = request.query.get("blobs", "").lower() == "true"
        siblings = [{"rfilename": path, **(_sibling(file) if blobs else {})} for path, file in files]
        body = {"id": repository.name, "sha": commit, "siblings": siblings, "gated": repository.gated and "auto"}
        return Reply(200, json.dumps(body).encode(), dict(JSON))

    def _tree(self, request: Request, repository: Repository, commit: str, path: str) -> Reply:
        below = f"{path}/" if path else ""
        files = {name: file for name, file in sorted(repository.commits[commit].items()) if name.startswith(below)}
        if path and not files:
            return Reply(404, headers={"X-Error-Code": "EntryNotFound"})
        folders = {name[: at.start()] for name in files for at in re.finditer("/", name) if at.start() >= len(below)}
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": folder} for folder in sorted(folders)]
        entries += [_entry(name, file) for name, file in files.items() if name not in self.hidden]
        start = int(request.query.get("cursor", "0"))
        page, headers = entries[start : start + self.page_files], dict(JSON)
        if start + self.page_files < len(entries):
            target = request.target.partition("?")[0]
            query = urlencode({**request.query, "cursor": start + self.page_files})
            headers["Link"] = f'<{self.next_host or self.address}{target}?{query}>; rel="next"'
        return Reply(200, json.dumps(page).encode(), headers)

    def _resolve(self, request: Request, repository: Repository, commit: str, path: str) -> Reply:
        file = repository.commits[commit].get(path)
        if file is None:
            return Reply(404, headers={"X-Error-Code": "EntryNotFound"})
        headers = {"X-Repo-Commit": commit, "X-Linked-Size": str(len(file.content))}
        if not file.large:
            return ranged(request, file.content, {**headers, "ETag": f'"{file.blob}"'}, "resolve")
        self.signatures += 1
        place = f"{self.store}/{file.sha256}?X-Amz-Signature={self.signatures:x}&name={quote(path, safe='')}"
        headers |= {"X-Linked-ETag": f'"{file.sha256}"', "Location": place}
        return Reply(302, headers=headers)


def _sibling(file: StoredFile) -> dict[str, Any]:
    found: dict[str, Any] = {"size": len(file.content), "blobId": file.blob}
    if file.large:
        found["lfs"] = {"size": len(file.content), "sha256": file.sha256, "pointerSize": len(file.pointer)}
    return found


def _entry(path: str, file: StoredFile) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "file", "oid": file.blob, "size": len(file.content), "path": path}
    if file.large:
        found["lfs"] = {"oid": file.sha256, "size": len(file.content), "pointerSize": len(file.pointer)}
    return found
