"""Lists a source in a store a second time, after all its files were copied, and compares the two listings.

The copies agree with the first listing, file by file. But the listing itself may have been incomplete, and the owner of
the data may have added, removed or replaced files while others were being copied. A source that looks different the
second time is refused, because its copies may belong to several states of the data. This does not apply to a source
that is pinned by a revision, whose owner promises that nothing changes, or to the Hub and web servers, which state the
version of each file (a web server has no listing that could be compared).

The second listing of a bucket is asked for with another page size, so that it is not simply the first one, repeated by
a cache. If the store has no checksums, sizes are compared.
Cost: one listing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from datakit.download.git.address import is_git
from datakit.download.remote_listing import is_listed_here
from datakit.download.source_file import SourceFile
from datakit.errors import ChangedInputError, NotFoundError
from datakit.printable import one_line
from datakit.storage import globs, urls
from datakit.storage.buckets.listing import OTHER_PAGE_KEYS
from datakit.storage.io_errors import read_errors
from datakit.storage.urls import FileInfo
from datakit.store_access import StoreAccess

SHOWN = 3  # how many files of each kind a message names


@dataclass(frozen=True)
class Look:
    """The URL and the patterns of a source, from which it was listed. access: `StoreAccess.text()`."""

    url: str
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    access: str = ""


def is_looked_at_twice(url: str, revision: str | None) -> bool:
    """Return True if a source is listed again after its files were copied."""
    return not (revision or urls.is_local(url) or is_listed_here(url) or is_git(url))


def require_same(name: str, files: Sequence[SourceFile], look: Look) -> None:
    """List the source again. name: that of the source. files: those of the first listing. Raises ChangedInputError if
    files were added, removed or replaced, or another DatakitError if the store does not answer.
    """
    now = {info.path: info for info in _listed(look)}
    then = {file.path: file for file in files}
    differences = {
        "appeared": sorted(now.keys() - then.keys()),
        "vanished": sorted(then.keys() - now.keys()),
        "changed": [path for path in sorted(then.keys() & now.keys()) if _differs(then[path], now[path])],
    }
    if any(differences.values()):
        raise ChangedInputError(
            f"source {name!r} did not look the same before and after its files were copied: "
            f"{', '.join(_clauses(differences))}; run again once nothing writes to {look.url} "
            "(if nothing did, its store gives incomplete or outdated listings)"
        )


def _listed(look: Look) -> list[FileInfo]:
    with read_errors(look.url):
        place = globs.locate(look.url, StoreAccess.from_text(look.access))
        try:
            every = globs.files_at(place, look.exclude, page_keys=OTHER_PAGE_KEYS)
        except NotFoundError:  # a single file that has vanished
            return []
    return globs.regular(globs.select(every, place, look.include, look.exclude))[0]


def _differs(then: SourceFile, now: FileInfo) -> bool:
    return then.size != now.size or (now.checksum is not None and now.checksum != then.checksum)


def _clauses(differences: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a clause for each kind of difference.

    >>> list(_clauses({"appeared": ["a", "b", "c", "d"], "vanished": [], "changed": ["e"]}))
    ['4 files appeared (a, b, c, ...)', '1 file changed (e)']
    """
    for verb, paths in differences.items():
        if paths:
            names = ", ".join([*map(one_line, paths[:SHOWN]), *["..."] * (len(paths) > SHOWN)])
            yield f"{len(paths):,} file{'s' * (len(paths) > 1)} {verb} ({names})"
