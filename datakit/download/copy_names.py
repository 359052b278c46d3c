"""Chooses the paths below `raw/` for the copies of remote files. The path of a copy is the key of its object. If no
file can have this path, the copy is named by the hash of the key, and the step's manifest lists this name beside the
key. Keys are never normalized: `a//b.txt`, `a/./b.txt` and `a/b.txt` are three objects.

A key cannot be a path if a component of it is empty, `.`, `..` or longer than a file's name may be, if it holds a NUL,
or if its first component is `hashed~`. Nor can a key be a path if another key lies below it: a disk cannot hold a file
`x.txt` beside a directory `x.txt/`. The names do not depend on the kind of the root's store, so a root on a disk and
one in a store hold the same files.
Cost: one pass over the sorted keys.
"""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from datakit.storage import urls

HASHED = "hashed~"  # the directory below `raw/` that holds the copies that are named by a hash
LONGEST_NAME = 255  # maximum number of bytes in a component of a path on a disk


def copy_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the path below `raw/` of each copy whose path is not its object's key.

    >>> copy_names(["a/b.txt", "a//b.txt"])
    {'a//b.txt': 'hashed~/9e5b9f40d73d4b6c2bd4ab5a4ab7fe61'}
    """
    known = set(keys)
    folders = {folder for key in known for folder in _folders(key)}
    return {key: _hashed(key) for key in sorted(known) if key in folders or not _can_be_a_path(key)}


def _folders(key: str) -> Iterable[str]:
    while key := key.rpartition("/")[0]:
        yield key


def _can_be_a_path(key: str) -> bool:
    parts = key.split("/")
    return urls.is_below(key) and parts[0] != HASHED and max(len(part.encode()) for part in parts) <= LONGEST_NAME


def _hashed(key: str) -> str:
    return f"{HASHED}/{xxhash.xxh3_128_hexdigest(key.encode())}"
