"""Defines a file in the listing of a source."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class SourceFile:
    """A file of a source: its path relative to the source's base, its size in bytes, and its checksum.

    mtime_ns: the modification time of a local file when it was listed. It reveals later changes, and is not part of the
    identity. content: the hash of the content, as `algorithm:hex`, with which a transfer is verified. etag,
    last_modified: the version of a file on a web server. url: the file's URL, if it is not below the source's base.
    """

    path: str
    size: int
    checksum: str
    mtime_ns: int | None = field(default=None, compare=False)
    content: str = field(default="", compare=False)
    etag: str = field(default="", compare=False)
    last_modified: str = field(default="", compare=False)
    url: str = field(default="", compare=False)

    @property
    def version(self) -> str | None:
        """The version of the file according to the server, for the manifest; None if it states none."""
        if self.etag or self.last_modified:
            return f"etag {self.etag}" if self.etag else f"last-modified {self.last_modified}"
        return self.content or None
