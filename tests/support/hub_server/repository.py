"""Repositories with branches, commits and files, as the Hub has them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

LARGE = 64  # bytes; files of this size or more are in Git LFS. The real limit is 10 MB.


@dataclass(frozen=True)
class StoredFile:
    """A file. A large one has a pointer in Git, and its content in the store."""

    content: bytes

    @property
    def large(self) -> bool:
        return len(self.content) >= LARGE

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def pointer(self) -> bytes:
        return (
            f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.content)}\n".encode()
        )

    @property
    def blob(self) -> str:
        """The id of the Git blob."""
        data = self.pointer if self.large else self.content
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repository:
    """A repository. branches: name -> commit. commits: commit -> files by path. token: needed to see it ("": none).
    gated: its files need a token of an account that has accepted the terms, one of `accepted`.
    """

    name: str
    kind: str = "datasets"
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, StoredFile]] = field(default_factory=dict)
    token: str = ""
    gated: bool = False
    accepted: set[str] = field(default_factory=set)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Add a commit with exactly these files, let the branch point to it, and return it."""
        stored = {path: StoredFile(content) for path, content in files.items()}
        tree = "".join(f"{path} {file.blob}\n" for path, file in sorted(stored.items()))
        commit = hashlib.sha1(f"{len(self.commits)} {tree}".encode()).hexdigest()
        self.commits[commit] = stored
        self.branches[branch] = commit
        return commit

    def resolve(self, revision: str) -> str | None:
        """The commit that a revision stands for; None if there is none."""
        found = self.branches.get(revision, revision)
        return found if found in self.commits else None
