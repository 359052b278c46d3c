"""Links or copies a finished file into another step, without reading it into Arrow or writing it again.

On a disk, the new file is a hard link; where hard links are not supported, it is a copy. In an object store, the store
itself copies the object, so the bytes do not pass through this machine. On a disk, the content is compared with the
checksum in the original step's manifest, so damage is not copied. In a store, the size is compared with the manifest,
and the checksum that the store states for the copy with that of the original.

Cost: on a disk, the file is read once, to hash it. In a store, one request for the copy and three for the size and the
checksums. If the store states different checksums for the copy and the original (which is possible for objects that
were uploaded in parts), the copy is read once.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from datakit.errors import CorruptError, DivergentOutputError
from datakit.storage import atomic, urls
from datakit.storage.io_errors import storage_errors


def commit_identical(original: str, url: str, size: int, xxh3: str) -> None:
    """Create the file `url` with the content of `original`, unless a file with the same content exists. size, xxh3: the
    expected size and checksum of the content. Raises CorruptError if the content of `original` is different,
    DivergentOutputError if a file with different content exists at `url`, and StorageError.
    """
    local = urls.is_local(url)
    if local or urls.size(original) != size:
        _compare(original, size, xxh3)
    if urls.exists(url):
        return _expect(url, xxh3)
    if local:
        with storage_errors(url):
            return _link(urls.local_path(original), url, xxh3)
    with storage_errors(url):
        file_system, remote = urls.filesystem(url)
        file_system.cp_file(urls.filesystem(original)[1], remote)
        file_system.invalidate_cache()
        checksums = [urls.checksum_of(file_system.info(urls.filesystem(place)[1])) for place in (original, url)]
    if None in checksums or checksums[0] != checksums[1]:
        _compare(url, size, xxh3)
    return None


def _link(path: str, url: str, xxh3: str) -> None:
    target = urls.local_path(url)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.link(path, target)
    except FileExistsError:  # another attempt was faster
        _expect(url, xxh3)
    except OSError as error:
        if error.errno not in (*atomic.NO_LINKS, errno.EXDEV):
            raise
        with atomic.staging(url) as near:
            shutil.copyfile(path, near)
            atomic.commit_file(Path(near), url)


def _compare(url: str, size: int, xxh3: str) -> None:
    found, length = atomic.hash_url(url)
    if (length, found) != (size, xxh3):
        raise CorruptError(
            f"{url} has {length} bytes and the xxh3 {found}, but the manifest of the normalize step states {size} and "
            f"{xxh3}; remove the step that holds this file, and run again"
        )


def _expect(url: str, xxh3: str) -> None:
    found, _ = atomic.hash_url(url)
    if found != xxh3:
        raise DivergentOutputError(
            f"{url} exists with different content (xxh3 {found}; this attempt would create {xxh3}); remove the step's "
            "directory and run again"
        )
