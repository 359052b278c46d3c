"""What a source is made of: its files, their sizes and checksums. This listing is the source's identity.

A local file's checksum is the xxh3-128 of its content (remembered by `HashCache`), a remote file's is the store's own
(an etag); a store that gives none is read through once to hash it, since a size alone would miss a change. A source
that resolves to nothing is an error that says what was looked for, where, and what is there instead.

Cost: one listing; the first time also one read of every local file, four at a time.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from datakit.download.hashes import HashCache
from datakit.errors import ChangedInputError, NoInputError, UnreadableError, suggestion
from datakit.storage import atomic, globs, urls
from datakit.storage.fingerprint import canonical_json
from datakit.storage.globs import Place
from datakit.storage.urls import FileInfo

HASHING_THREADS = 4


@dataclass(frozen=True)
class SourceFile:
    """A file of a source: its path relative to the source's base, its size in bytes, its checksum.

    mtime_ns: of a local file when it was listed. It is not part of what the file is: it tells whether it still is that.
    """

    path: str
    size: int
    checksum: str
    mtime_ns: int | None = field(default=None, compare=False)


def source_base(url: str) -> str:
    """The absolute URL that the paths of `list_source(url, ...)` are relative to."""
    return globs.locate(url).base


def pinned(url: str, revision: str | None) -> str:
    """A Hub URL at a revision; any other URL as it is.

    >>> pinned("hf://datasets/org/name/folder", "abc")
    'hf://datasets/org/name@abc/folder'
    """
    scheme, _, rest = url.partition("://")
    if scheme != "hf" or not revision:
        return url
    parts = rest.split("/")
    repository = 2 if parts[0] in ("datasets", "spaces") else 1
    parts[repository] = f"{parts[repository].partition('@')[0]}@{revision}"
    return f"{scheme}://{'/'.join(parts)}"


def list_source(
    url: str, include: Sequence[str], exclude: Sequence[str], cache: HashCache | None = None
) -> list[SourceFile]:
    """The files of a source, sorted by path. Raises NoInputError, UnreadableError.

    `url` is one file, a directory, or a glob; patterns as in `datakit.storage.globs`.
    """
    place = globs.locate(url)
    every = globs.files_at(place, exclude)
    chosen = globs.select(every, place, include, exclude)
    if not chosen:
        raise NoInputError(_nothing(url, place, every, include, exclude))
    for info in chosen:
        _check_name(info)
    local = urls.is_local(place.base)
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        files = list(pool.map(lambda info: _local_file(info, cache) if local else _remote_file(info), chosen))
    if cache is not None:
        cache.save()
    return files


def listing_digest(files: Sequence[SourceFile]) -> str:
    """One number for a listing: what a source's fingerprint is made of."""
    return xxhash.xxh3_128_hexdigest(canonical_json([[file.path, file.size, file.checksum] for file in files]))


def _check_name(info: FileInfo) -> None:
    try:
        info.path.encode()
    except UnicodeEncodeError as error:
        raise UnreadableError(f"the file name {os.fsencode(info.url)!r} is not UTF-8; rename or exclude it") from error


def _local_file(info: FileInfo, cache: HashCache | None) -> SourceFile:
    try:
        state = os.stat(info.url)
        xxh3 = cache.get(info.path, state) if cache is not None else None
        if xxh3 is None:
            xxh3 = _hashed(info, state)
            if cache is not None:
                cache.put(info.path, state, xxh3)
    except OSError as error:
        raise UnreadableError(f"{info.url} cannot be read: {error.strerror}; mend or exclude it") from error
    return SourceFile(info.path, state.st_size, xxh3, state.st_mtime_ns)


def _hashed(info: FileInfo, before: os.stat_result) -> str:
    xxh3, length = atomic.hash_file(Path(info.url))
    after = os.stat(info.url)
    if (before.st_size, before.st_mtime_ns) != (length, after.st_mtime_ns):
        raise ChangedInputError(f"{info.url} changed while it was listed; run again when nobody writes to it")
    return xxh3


def _remote_file(info: FileInfo) -> SourceFile:
    return SourceFile(info.path, info.size, info.checksum or atomic.hash_url(info.url)[0])


def _nothing(url: str, place: Place, every: Sequence[FileInfo], include: Sequence[str], exclude: Sequence[str]) -> str:
    """What was looked for, where, and what is there instead."""
    looked_for = f"{url}: no file" if not include else f"{url}: no file that matches {', '.join(include)}"
    if exclude:
        looked_for += f" and is not excluded by {', '.join(exclude)}"
    if every:
        kinds = Counter(os.path.splitext(info.path)[1] or "no extension" for info in every)
        there = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5))
        return f"{looked_for}; below {place.base} there are {there}, e.g. {every[0].path}; change the patterns"
    if not urls.is_local(place.base):
        return f"{looked_for}; {place.base} is empty or not there; check the URL and the credentials"
    if os.path.isdir(place.base):
        return f"{looked_for}; the directory {place.base} is empty (names that begin with a dot do not count)"
    return f"{looked_for}; {_nearest(place.base)}"


def _nearest(missing: str) -> str:
    """The deepest directory above `missing` that exists, and the nearest name in it."""
    above, name = os.path.split(missing)
    while not os.path.isdir(above):
        above, name = os.path.split(above)
    names = [entry for entry in sorted(os.listdir(above)) if not entry.startswith(".")]
    advice = suggestion(name, names)
    return f"{above} exists, but it has no {name!r}; {advice if advice.startswith('did') else 'check the path'}"
