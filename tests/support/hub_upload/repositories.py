"""The state of a Hub for tests: dataset repositories with commits, and the store of large files.

A commit names files: small ones by their bytes, large ones (Parquet) by the SHA-256 of an object that must have been
uploaded before. As on the real Hub, a commit whose stated parent is not the newest commit is refused.
"""

from __future__ import annotations

import hashlib
import json
import threading
from base64 import b64decode
from dataclasses import dataclass, field
from typing import Any


class RefusedError(Exception):
    """A request that the Hub refuses, with the status, the body and the headers of its answer."""

    def __init__(self, status: int, message: str, code: str = "", **body: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, {"X-Error-Code": code} if code else {}
        self.body = {"error": message, **body}


@dataclass(frozen=True)
class StoredFile:
    """A file of a commit. sha256: None for a small file, whose bytes are in `content`."""

    size: int
    content: bytes
    sha256: str | None = None

    def entry(self, path: str) -> dict[str, Any]:
        """The file as a tree lists it."""
        shown = self.content if self.sha256 is None else f"pointer to {self.sha256}".encode()
        oid = hashlib.sha1(b"blob %d\0" % len(shown) + shown).hexdigest()
        entry: dict[str, Any] = {"type": "file", "path": path, "size": self.size, "oid": oid}
        if self.sha256 is not None:
            entry["lfs"] = {"oid": self.sha256, "size": self.size, "pointerSize": len(shown)}
        return entry


@dataclass
class Repository:
    """A dataset repository: its commits from the first to the newest, each with all files."""

    private: bool
    commits: list[tuple[str, dict[str, StoredFile]]] = field(default_factory=list)

    @property
    def head(self) -> str:
        """The newest commit."""
        return self.commits[-1][0]

    @property
    def files(self) -> dict[str, StoredFile]:
        """The files of the newest commit."""
        return self.commits[-1][1]

    def at(self, revision: str) -> dict[str, StoredFile]:
        """The files of a commit, or of the branch main."""
        found = self.files if revision == "main" else dict(self.commits).get(revision)
        if found is None:
            raise RefusedError(404, "no such revision", "RevisionNotFound")
        return found

    def add(self, files: dict[str, StoredFile], message: str) -> str:
        """Add a commit with these files; return its id."""
        names = sorted((path, file.sha256 or file.content.hex()) for path, file in files.items())
        parent = self.commits[-1][0] if self.commits else ""
        oid = hashlib.sha1(json.dumps([parent, message, names]).encode()).hexdigest()
        self.commits.append((oid, dict(files)))
        return oid


class Hub:
    """All repositories and uploaded objects."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.lock = threading.RLock()

    def create(self, name: str, private: bool) -> None:
        """Create a repository as the Hub does, with one commit."""
        with self.lock:
            if name in self.repositories:
                raise RefusedError(409, "You already created this dataset repo", url=f"/datasets/{name}")
            made = self.repositories[name] = Repository(private)
            attributes = b"*.parquet filter=lfs diff=lfs merge=lfs -text\n"
            made.add({".gitattributes": StoredFile(len(attributes), attributes)}, "initial commit")

    def find(self, name: str) -> Repository:
        """Return a repository; refuse the request if there is none."""
        if name not in self.repositories:
            raise RefusedError(404, "Repository not found", "RepoNotFound")
        return self.repositories[name]

    def keep(self, oid: str, data: bytes) -> None:
        """Store an uploaded object under its SHA-256."""
        if hashlib.sha256(data).hexdigest() != oid:
            raise RefusedError(422, "the content does not have this oid")
        with self.lock:
            self.objects[oid] = data

    def commit(self, name: str, lines: bytes) -> str:
        """Make a commit from the lines of a commit request; return its id."""
        with self.lock:
            repository = self.find(name)
            entries = [json.loads(line) for line in lines.splitlines()]
            header = next(entry["value"] for entry in entries if entry["key"] == "header")
            if header.get("parentCommit") not in (None, repository.head):
                raise RefusedError(412, "A commit has happened since. Please refresh and try again.")
            files = dict(repository.files)
            for entry in entries:
                self._apply(files, entry["key"], entry["value"])
            return repository.add(files, header["summary"])

    def _apply(self, files: dict[str, StoredFile], key: str, value: dict[str, Any]) -> None:
        if key == "file":
            content = b64decode(value["content"])
            files[value["path"]] = StoredFile(len(content), content)
        elif key == "lfsFile":
            data = self.objects.get(value["oid"])
            if data is None or len(data) != value["size"]:
                raise RefusedError(422, "the commit names an object that was not uploaded")
            files[value["path"]] = StoredFile(len(data), data, value["oid"])
        elif key == "deletedFile":
            if value["path"] not in files:
                raise RefusedError(404, "A file with this name doesn't exist", "EntryNotFound")
            del files[value["path"]]
