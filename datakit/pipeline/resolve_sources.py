"""Decides what identifies each source (its revision or its listing), when the source is listed, what `--offline`
trusts, and which notes `run` and `plan` print about the source.

A source pinned by a revision is identified by its URL, its revision and its patterns (`include` and `exclude`). Once it
has been downloaded, it need not be listed. If the revision is a branch or a tag of a Hub repository, the commit that it
stood for in the first run is used until the download is finished. Any other source is identified by its listing. With
`--offline`, nothing remote is contacted: a pinned source must have been downloaded already, and for any other remote
source, the listing of its last download is trusted. Local sources are always listed, which is cheap because the hashes
of their files are stored in the root. A source that contains files of the output root is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from datakit.download.commit_file import CommitFile
from datakit.download.git.address import is_git
from datakit.download.hashes import HashCache
from datakit.download.listing import Listing, listed, listing_digest, pinned, source_base
from datakit.download.remote_listing import RemoteOptions, pinned_commit
from datakit.download.second_look import Look, is_looked_at_twice
from datakit.download.source_file import SourceFile
from datakit.download.stage import FORMAT_VERSION, NAME
from datakit.engine.ledger.ledger import DriverLine, read_ledger
from datakit.errors import DatakitError, NewerFormatError, NoInputError, RecipeError
from datakit.pipeline.root_layout import source_directory, step_directory
from datakit.recipe import Recipe, Source
from datakit.signed_urls import split_query
from datakit.storage import globs, urls
from datakit.storage.fingerprint import fingerprint
from datakit.storage.io_errors import read_errors
from datakit.storage.manifest import FILE_NAME, find_manifest, read_manifest
from datakit.store_access import StoreAccess, access_of

LISTING = "listing"


@dataclass(frozen=True)
class ListingOptions:
    """Options for listing. With `dry_run`, nothing is written, and an unreachable pinned source is not an error."""

    offline: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class SourceState:
    """A source's current state. content: the parameters of its download step, which identify the source. base: the
    directory to which the files' paths are relative; the source's URL if the source was not listed. files: None if the
    source was not listed. note: a message for the user, or "". query: the query string of the source's URL, which is
    needed to read the source, and which neither `content` nor `base` contains. resolved: see `Listing`. access: how the
    source's store is reached, as a text. look: how to list the source again at the end of the download; None if this is
    not done.
    """

    name: str
    content: dict[str, Any]
    base: str
    files: tuple[SourceFile, ...] | None = None
    note: str = ""
    query: str = field(default="", repr=False)
    resolved: Mapping[str, str] = field(default_factory=dict)
    private_redirects: bool = False
    access: str = ""
    look: Look | None = None

    def operations(self) -> dict[str, Any]:
        """Return the download step's operations."""
        files = [asdict(file) for file in self.files or ()]
        operations = {"base": self.base, "files": files, "query": self.query, "access": self.access}
        operations |= {"resolved": dict(self.resolved)} if self.resolved else {}
        operations |= {"look": asdict(self.look)} if self.look else {}
        return operations | ({"private_redirects": True} if self.private_redirects else {})

    def listed(self) -> dict[str, tuple[int, int, str]]:
        """Return the expected state of the files that are read in place: path -> (size, mtime in ns, xxh3-128)."""
        files = [(file, file.mtime_ns) for file in self.files or ()]
        return {file.path: (file.size, time, file.checksum) for file, time in files if time is not None}


def resolve_source(source: Source, selection: dict[str, Any], root: str, options: ListingOptions) -> SourceState:
    """Return a source's state. selection: the source's patterns, `include` and `exclude`. Raises RecipeError or
    NoInputError for an unusable source, and another DatakitError if the source's files cannot be listed.
    """
    url = pinned(source.url, source.revision)
    if source.history:
        if not is_git(url):
            raise RecipeError(
                f"source {source.name!r}: only a Git repository has a history, and its URL begins with git+https:// or "
                "git+file://; remove the setting"
            )
        selection = {**selection, "history": True}
    local = urls.is_local(globs.expand(url))
    if local and source.revision:
        raise RecipeError(
            f"source {source.name!r}: a local source is identified by its content and cannot have a revision; "
            f"remove the setting"
        )
    if source.revision:
        return _pinned(source, url, selection, root, options)
    if options.offline and not local:
        return _last_download(source, url, selection, root)
    listing, note = _list(source, url, selection, (root, options))
    twice, access = is_looked_at_twice(url, source.revision), _access(source).text()
    look = Look(url, tuple(selection["include"]), tuple(selection["exclude"]), access) if twice else None
    state = _listed_state(source, url, {**selection, LISTING: listing_digest(listing.files)}, listing, note)
    return replace(state, look=look)


def _access(source: Source) -> StoreAccess:
    return access_of(source.name, source.url, source.anonymous, source.requester_pays, source.endpoint)


def local_folders(recipe: Recipe) -> dict[str, str]:
    """Return the directory of each source's files, or "" for a remote source. Nothing is listed."""
    places = {source.name: globs.expand(source.url) for source in recipe.sources}
    return {name: source_base(url) if urls.is_local(url) else "" for name, url in places.items()}


def _listed_state(source: Source, url: str, content: dict[str, Any], listing: Listing, note: str) -> SourceState:
    query = split_query(url)[1]
    files, private = tuple(listing.files), source.private_redirects
    access = _access(source).text()
    return SourceState(source.name, content, listing.base, files, note, query, listing.resolved, private, access)


def _list(
    source: Source, url: str, selection: dict[str, Any], place: tuple[str, ListingOptions], commit: str = ""
) -> tuple[Listing, str]:
    """Return the listing and a note for the user. place: the root, and how to list. commit: see `RemoteOptions`. Errors
    of the store's client library are raised as DatakitErrors.
    """
    (root, options), name, left_out = place, source.name, list[str]()
    remote = RemoteOptions(source.files, source.private_redirects, commit, _access(source), history=source.history)
    with read_errors(url):
        cache = HashCache(root, name, frozen=options.dry_run)
        patterns = selection["include"], selection["exclude"]
        found = listed(
            url, *patterns, cache, left_out.append, outside_links=source.outside_links, remote=remote
        )  # fmt: skip
    if urls.is_local(found.base) and urls.is_local(root):
        inside = urls.relative(root, found.base) + "/"
        if any(file.path.startswith(inside) for file in found.files):
            raise RecipeError(
                f"source {name!r}: some of its files are in the output root {root}, so every run would change the "
                f'source; add exclude = ["{inside}**"] or choose another --root'
            )
    return found, f"source {name}: left out: {left_out[0]}" if left_out else ""


def _pinned(source: Source, url: str, selection: dict[str, Any], root: str, options: ListingOptions) -> SourceState:
    content = {**selection, "url": source.url, "revision": source.revision}
    number = fingerprint(NAME, FORMAT_VERSION, content, [])
    if find_manifest(step_directory(root, source.name, source.name, NAME, number)) is not None:
        return SourceState(source.name, content, url)
    if options.offline:
        if not options.dry_run:
            raise _not_downloaded(source)
        note = f"source {source.name}: not downloaded yet; its size is unknown"
        return SourceState(source.name, content, url, note=note)
    commits = CommitFile(root, source.name, number)
    try:
        listing, note = _list(source, url, selection, (root, options), commits.read())
    except DatakitError as error:
        if not options.dry_run or isinstance(error, NoInputError):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return SourceState(source.name, content, url, note=f"source {source.name}: its size is unknown ({reason})")
    commit = pinned_commit(url, listing.resolved)
    if commit and not options.dry_run:
        commits.write(commit)
    return _listed_state(source, url, content, listing, note)


def _last_download(source: Source, url: str, selection: dict[str, Any], root: str) -> SourceState:
    """Return the source's state as its last download recorded it. Used with `--offline`."""
    home = source_directory(root, source.name)
    found: list[tuple[float, str, dict[str, Any]]] = []
    for info in urls.listing(home):
        directory, _, name = info.path.rpartition("/")
        if name == FILE_NAME and directory.startswith(f"{NAME}-") and "/" not in directory:
            try:
                manifest = read_manifest(urls.join(home, directory))
            except NewerFormatError:  # made by a newer version of datakit, so this version cannot use it
                continue
            if {key: value for key, value in manifest.parameters.items() if key != LISTING} == selection:
                found.append((_last_run(urls.join(home, directory)), directory, manifest.parameters))
    if not found:
        raise _not_downloaded(source)
    _, directory, content = max(found, key=lambda entry: entry[:2])
    note = f"source {source.name}: not listed (--offline); using {directory} unchanged"
    return SourceState(source.name, content, split_query(url)[0], note=note)


def _last_run(directory: str) -> float:
    return max((line.time for line in read_ledger(directory) if isinstance(line, DriverLine)), default=0.0)


def _not_downloaded(source: Source) -> NoInputError:
    return NoInputError(f"source {source.name!r} ({source.url}) is not downloaded yet; run once without --offline")
