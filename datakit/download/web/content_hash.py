"""Computes the hashes by which servers and the Hub identify a file's content, together with datakit's own.

sha256     the Hub states it for each file in Git LFS
git-sha1   the id of a Git blob, which the Hub states for all other files: the SHA-1 of a header and the content
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, cast

import xxhash

from datakit.errors import StorageError
from datakit.regular_files import open_regular

SHA256, GIT_SHA1, XXH3 = "sha256", "git-sha1", "xxh3-128"
BUFFER_BYTES = 1 << 20


def hasher(algorithm: str, size: int) -> Any:
    """Return an object with `update` and `hexdigest`. size: that of the file. Raises StorageError for an unknown
    algorithm.

    >>> found = hasher("git-sha1", 6)
    >>> found.update(b"hello\\n")
    >>> found.hexdigest()
    'ce013625030ba8dba906f756967f9e9ca394464a'
    """
    if algorithm == SHA256:
        return hashlib.sha256()
    if algorithm == XXH3:
        return xxhash.xxh3_128()
    if algorithm == GIT_SHA1:
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    raise StorageError(f"the hash {algorithm!r} is unknown; use a version of datakit that knows it")


def hash_both(path: Path, content: str) -> tuple[str, str]:
    """Read a file once; return its xxh3-128, and its hash in the form of `content` (`algorithm:hex`; "" if `content` is
    empty).
    """
    algorithm = content.partition(":")[0]
    own, buffer = xxhash.xxh3_128(), memoryview(bytearray(BUFFER_BYTES))
    other = hasher(algorithm, path.stat().st_size) if algorithm else None
    with open_regular(str(path)) as file:
        while count := cast(Any, file).readinto(buffer):
            own.update(buffer[:count])
            if other is not None:
                other.update(buffer[:count])
    return own.hexdigest(), f"{algorithm}:{other.hexdigest()}" if other is not None else ""
