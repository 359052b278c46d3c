"""Caches the hashes of local source files, and decides from a file's size, times, inode and device whether its cached
hash is still valid. Each source has one small JSON file, `<root>/.cache/hashes-<source>.json`: path -> [size, mtime in
ns, ctime in ns, inode, device, xxh3-128]. The times decide only whether a cached hash is valid; they are never part of
an identity. The modification time alone would not suffice: it can be restored (`touch -r`, `rsync --times`), while the
inode change time cannot. The hash of a file that changed in the last two seconds is not cached, because a second change
within the same clock tick would go unnoticed. A network disk has a clock of its own. To read this clock, datakit has to
write a file, which it does only on the root's disk; for files on other disks, this machine's clock is used.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

import msgspec

from datakit.errors import NotFoundError
from datakit.storage import store_clock, urls
from datakit.storage.atomic import replace_bytes
from datakit.storage.io_errors import unless_read_only
from datakit.storage.json_data import decode

# A hash is cached only if the file last changed longer ago than this. Among common file systems, FAT has the
# coarsest clock, which ticks every two seconds.
SETTLED_NS = 2 * 10**9
Entry = tuple[int, int, int, int, int, str]


def hash_folder(root: str) -> str:
    """Return the directory of the cached hashes."""
    return urls.join(root, ".cache")


class HashCache:
    """The cached hashes of one source, or of a recipe's models. frozen: if true, never write the cache file (for
    `datakit plan`). kind: the start of the file's name.
    """

    def __init__(self, root: str, source: str, frozen: bool = False, kind: str = "hashes") -> None:
        self.url: str = urls.join(hash_folder(root), f"{kind}-{source}.json")
        self._root = root
        self._frozen = frozen
        self._entries = _load(self.url)
        self._used: dict[str, Entry] = {}
        self._hashed: dict[str, tuple[int, Entry]] = {}  # path -> (time of `put` by this machine's clock, in ns; entry)

    def get(self, path: str, status: os.stat_result) -> str | None:
        """Return the cached hash of the file at `path`, or None if none is cached for this path and status."""
        entry = self._entries.get(path)
        if entry is None or entry[:-1] != _stamp(status):
            return None
        self._used[path] = entry
        return entry[-1]

    def put(self, path: str, status: os.stat_result, xxh3: str) -> None:
        """Add the hash of a file. `save` drops it if the file had changed in the two seconds before this call."""
        self._hashed[path] = (time.time_ns(), (*_stamp(status), xxh3))

    def save(self) -> None:
        """Write the entries that were used or added since the cache was opened, and drop all others."""
        if self._frozen:
            return
        device, ahead = self._root_clock() if self._hashed else (None, 0)
        for path, (hashed, entry) in self._hashed.items():
            if hashed + (ahead if entry[4] == device else 0) - max(entry[1:3]) > SETTLED_NS:
                self._used[path] = entry
        self._hashed.clear()
        if self._used != self._entries:
            with unless_read_only():
                replace_bytes(msgspec.json.encode(dict(sorted(self._used.items()))), self.url)
            self._entries = dict(self._used)

    def _root_clock(self) -> tuple[int | None, int]:
        """Return the device of a local root, and the nanoseconds by which its clock is ahead of this machine's."""
        if not urls.is_local(self._root):
            return None, 0
        root = urls.local_path(self._root)
        is_new = not os.path.isdir(root)
        ahead = int((store_clock.now(self._root) - time.time()) * 1e9)
        device = os.stat(root).st_dev if os.path.isdir(root) else None
        if is_new:  # created by `store_clock.now`; leave no empty root if the run is refused before its first step
            with suppress(OSError):
                os.rmdir(root)
        return device, ahead


def _stamp(status: os.stat_result) -> tuple[int, int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


def _load(url: str) -> dict[str, Entry]:
    try:
        return decode(urls.read_bytes(url), dict[str, Entry])
    except (NotFoundError, msgspec.DecodeError):
        return {}  # no cache, or one that is damaged or in an older format: all files are hashed again
