"""Lists a source's files with their sizes and checksums, pins Hugging Face URLs to a revision, and composes the error
messages for missing and unreadable files. For a source that is not pinned to a revision, the listing is the source's
identity. The checksum of a local file is the xxh3-128 of its content (cached by `HashCache`). The checksum of a remote
file is the one that the store provides, such as an ETag. If the store provides none, every listing reads the whole file
to hash it, since its size alone would not reveal every change. If a source has no files, the error states what was
searched for, where, and what exists instead.

Cost: one listing, plus one read of every local file whose hash is not cached and of every remote file without a
checksum, four files at a time.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import xxhash

from datakit.download import remote_listing
from datakit.download.git.address import is_git, pinned_repository
from datakit.download.git.steps import listed_file
from datakit.download.hashes import HashCache
from datakit.download.hub.address import parse
from datakit.download.remote_listing import RemoteOptions
from datakit.download.source_file import SourceFile
from datakit.errors import ChangedInputError, NoInputError, RefusedError, UnreadableError, refuse_all, suggestion
from datakit.printable import one_line
from datakit.regular_files import open_regular, special_kind
from datakit.signed_urls import refuse_user_info
from datakit.storage import atomic, globs, urls
from datakit.storage.fingerprint import canonical_json
from datakit.storage.globs import Place
from datakit.storage.urls import FileInfo

S3_VERSION = "?versionId="  # s3fs interprets the text after this as the version of an object
Patterns = tuple[Sequence[str], Sequence[str]]  # include, exclude
HASHING_THREADS = 4  # xxh3 is faster than most disks, and a few concurrent reads suffice to keep a disk busy


@dataclass(frozen=True)
class Listing:
    """The files of a source, sorted by path. base: the URL to which their paths are relative, without a query string.
    resolved: what else identifies a source on the Hub: its repository and commit.
    """

    base: str
    files: list[SourceFile]
    resolved: Mapping[str, str] = field(default_factory=dict)


def source_base(url: str) -> str:
    """Return the absolute base URL, to which the paths in `listed(url, ...)` are relative. It does not include the
    query string of a single file's URL.
    """
    return url if is_git(url) else globs.locate(url).base


def pinned(url: str, revision: str | None) -> str:
    """Return the URL of the Hugging Face Hub or of a Git repository pinned to `revision`, and any other URL unchanged.
    Raises RootError if the revision of a repository is not a commit, or if a Hub URL has the wrong form.

    >>> pinned("hf://datasets/org/name/folder", "abc")
    'hf://datasets/org/name@abc/folder'
    """
    if is_git(url) and revision:
        return pinned_repository(url, revision)
    if not url.startswith(remote_listing.HUB) or not revision:
        return url
    return replace(parse(url), revision=revision).url()


def listed(
    url: str,
    include: Sequence[str],
    exclude: Sequence[str],
    cache: HashCache | None = None,
    on_skipped: Callable[[str], None] = lambda clause: None,
    *,
    outside_links: bool = False,
    remote: RemoteOptions = RemoteOptions(),  # noqa: B008 - frozen
) -> Listing:
    """List the files of a source. Raises NoInputError, ChangedInputError, another DatakitError if a server does not
    answer or contradicts itself, or one RefusedError for all files that cannot be read.

    url: a file, a directory, or a glob. include, exclude: patterns as described in `datakit.storage.globs`.
    on_skipped: if matching entries are not read, this is called with a clause that counts and names them.
    outside_links: if True, links that lead out of the source's directory are followed. remote: options for sources
    that are not on a disk.
    """
    if is_git(url):
        path, commit = listed_file(url, remote.history)
        return Listing(url, [SourceFile(path, 0, commit)])  # the size is unknown before the repository is fetched
    if not remote_listing.is_listed_here(url):
        place = globs.locate(url, remote.access)
        chosen = _chosen(url, place, globs.files_at(place, exclude, outside_links), (include, exclude), on_skipped)
        return Listing(place.base, _hashed(chosen, cache))
    refuse_user_info(url)
    found = remote_listing.look(url, remote)
    chosen = _chosen(url, found.place, found.every, (include, exclude), on_skipped)
    refuse_all([error for error in map(_name_error, chosen) if error is not None])
    return Listing(found.place.base, found.describe(chosen), found.resolved)


def _chosen(
    url: str, place: Place, every: list[FileInfo], patterns: Patterns, on_skipped: Callable[[str], None]
) -> list[FileInfo]:
    include, exclude = patterns
    chosen, left_out = globs.regular(globs.select(every, place, include, exclude))
    if not chosen:
        found = [info for info in every if not info.special]
        why = _no_files(url, place, found, include, exclude)
        raise NoInputError(f"{why}; left out: {left_out}" if left_out else why)
    if left_out:
        on_skipped(left_out)
    return chosen


def _hashed(chosen: list[FileInfo], cache: HashCache | None) -> list[SourceFile]:
    stopped = threading.Event()
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        try:
            found = list(pool.map(lambda info: _listed_or_refused(info, cache, stopped), chosen))
        except BaseException:  # includes Ctrl-C and SIGTERM; if not stopped, the threads would go on reading
            stopped.set()
            raise
    refuse_all([one for one in found if isinstance(one, RefusedError)])
    if cache is not None:
        cache.save()
    return [one for one in found if isinstance(one, SourceFile)]


def listing_digest(files: Sequence[SourceFile]) -> str:
    """Return the hash of a listing, which enters the source's fingerprint."""
    return xxhash.xxh3_128_hexdigest(canonical_json([[file.path, file.size, file.checksum] for file in files]))


def _listed_or_refused(info: FileInfo, cache: HashCache | None, stopped: threading.Event) -> SourceFile | RefusedError:
    try:
        _check_name(info)
        return _listed(info, cache, stopped)
    except RefusedError as error:
        return error


def _name_error(info: FileInfo) -> RefusedError | None:
    try:
        _check_name(info)
    except RefusedError as error:
        return error
    return None


def _check_name(info: FileInfo) -> None:
    try:
        info.path.encode()
    except UnicodeEncodeError as error:
        raise UnreadableError(
            f"the file name {os.fsencode(info.url)!r} is not valid UTF-8; rename or exclude the file"
        ) from error
    if urls.is_local(info.url):
        return
    if info.path.endswith("/") or (urls.protocol(info.url) == "s3" and S3_VERSION in info.path):
        why = "ends with a slash" if info.path.endswith("/") else f"holds {S3_VERSION!r}"
        raise UnreadableError(
            f"the key {info.path!r} {why}, so the store's client library would read another object; copy the object to "
            "another key, or exclude it"
        )


def _listed(info: FileInfo, cache: HashCache | None, stopped: threading.Event) -> SourceFile:
    if not urls.is_local(info.url):
        return SourceFile(info.path, info.size, info.checksum or _hash_until(info.url, stopped)[0])
    try:
        status = os.stat(info.url)
        xxh3 = cache.get(info.path, status) if cache is not None else None
        if xxh3 is None:
            xxh3 = _hash(info, status, stopped)
            if cache is not None:
                cache.put(info.path, status, xxh3)
    except OSError as error:
        raise UnreadableError(
            f"{one_line(info.url)} cannot be read: {error.strerror}; make it readable, or exclude it"
        ) from error
    return SourceFile(info.path, status.st_size, xxh3, status.st_mtime_ns)


def _hash(info: FileInfo, before: os.stat_result, stopped: threading.Event) -> str:
    xxh3, length = _hash_until(info.url, stopped)
    after = os.stat(info.url)
    if (before.st_size, before.st_mtime_ns) != (length, after.st_mtime_ns):
        raise ChangedInputError(
            f"{one_line(info.url)} changed while it was being listed; run again once nothing is writing to it"
        )
    return xxh3


def _hash_until(url: str, stopped: threading.Event) -> tuple[str, int]:
    """Return the xxh3-128 and the size of a file. Raises CancelledError once `stopped` is set."""

    def check() -> None:
        if stopped.is_set():
            raise CancelledError

    with open_regular(url) if urls.is_local(url) else urls.open_read(url) as file:
        return atomic.hash_open(file, check)


def _no_files(url: str, place: Place, every: Sequence[FileInfo], include: Sequence[str], exclude: Sequence[str]) -> str:
    """Return a message that says what was searched for, where, and what exists instead."""
    searched = f"{url}: no files" if not include else f"{url}: no files match {', '.join(include)}"
    if exclude:
        searched += f" other than those that match {', '.join(exclude)}"
    if every:
        kinds = Counter(os.path.splitext(info.path)[1] or "without an extension" for info in every)
        found = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5))
        return f"{searched}; {place.base} contains {found}, e.g. {every[0].path}; change the patterns"
    if not urls.is_local(place.base):
        return f"{searched}; {place.base} is empty or does not exist; check the URL and the credentials"
    if os.path.isdir(place.base):
        return f"{searched}; the directory {place.base} is empty (hidden files are ignored)"
    if os.path.exists(place.base):
        kind = special_kind(os.stat(place.base).st_mode)
        return f"{searched}; {place.base} is {kind}, not a file or directory; copy the data to a file"
    return f"{searched}; {_nearest(place.base)}"


def _nearest(missing: str) -> str:
    """Return a clause that names the deepest existing directory above `missing` and, if any, an entry of that directory
    with a similar name.
    """
    above, name = os.path.split(missing)
    while not os.path.isdir(above):
        above, name = os.path.split(above)
    names = [entry for entry in sorted(os.listdir(above)) if not entry.startswith(".")]
    advice = suggestion(name, names)
    return f"{above} exists, but it has no {name!r}; {advice if advice.startswith('did') else 'check the path'}"
