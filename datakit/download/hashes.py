"""Remembers the hashes of local files, so that a second run reads names and sizes instead of bytes.

One small JSON file a source, `<root>/.cache/hashes-<source>.json`: path -> [size, mtime in ns, ctime in ns, inode,
device, xxh3-128]. The times only decide whether a stored hash may be trusted; they are never part of an identity. The
modification time alone can be put back (`touch -r`, `rsync --times`), the time of the inode's last change cannot. A
file that changed within the last two seconds is not remembered: a second change in the same tick of the clock would go
unseen.
"""

from __future__ import annotations

import os
import time

import msgspec

from datakit.errors import NotFoundError
from datakit.storage import urls
from datakit.storage.atomic import replace_bytes

SETTLED_NS = 2 * 10**9
Stamp = tuple[int, int, int, int, int]
Entry = tuple[int, int, int, int, int, str]


class HashCache:
    """The remembered hashes of one source. `frozen` never writes (for `datakit plan`)."""

    def __init__(self, url: str, frozen: bool = False) -> None:
        self.url, self._frozen = url, frozen
        self._entries = _load(url)
        self._seen: dict[str, Entry] = {}

    @classmethod
    def of_source(cls, root: str, source: str, frozen: bool = False) -> HashCache:
        """The cache of source `source` in `root`."""
        return cls(urls.join(root, ".cache", f"hashes-{source}.json"), frozen)

    def get(self, path: str, state: os.stat_result) -> str | None:
        """The hash of the file as it is now, if it is known."""
        entry = self._entries.get(path)
        if entry is None or entry[:-1] != _stamp(state):
            return None
        self._seen[path] = entry
        return entry[-1]

    def put(self, path: str, state: os.stat_result, xxh3: str) -> None:
        """Remember a hash, if the file has been left alone for a while."""
        if time.time_ns() - max(state.st_mtime_ns, state.st_ctime_ns) > SETTLED_NS:
            self._seen[path] = (*_stamp(state), xxh3)

    def save(self) -> None:
        """Keep what was asked for or put since the cache was opened; files that are gone are forgotten."""
        if not self._frozen and self._seen != self._entries:
            replace_bytes(msgspec.json.encode(dict(sorted(self._seen.items()))), self.url)
            self._entries = dict(self._seen)


def _stamp(state: os.stat_result) -> Stamp:
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino, state.st_dev


def _load(url: str) -> dict[str, Entry]:
    try:
        return msgspec.json.decode(urls.read_bytes(url), type=dict[str, Entry])
    except (NotFoundError, msgspec.DecodeError):
        return {}  # a cache: without it, or with an older form of it, files are hashed again
