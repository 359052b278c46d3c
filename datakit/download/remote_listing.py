"""Lists the files of a source on the Hub or on a web server, with what a transfer needs to verify each of them.

A Hub URL is pinned to a commit: the base of the listing names the commit, whatever revision the recipe names, so that
all requests are about the same commit. `hub/` and `web/` say what is asked, and which contradictions are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from datakit.download.hub.address import COMMIT, HubAddress, parse
from datakit.download.source_file import SourceFile
from datakit.download.web.patience import REAL, Clock
from datakit.errors import RefusedError, refuse_all
from datakit.signed_urls import HTTP, split_query
from datakit.storage import globs, urls
from datakit.storage.globs import Place
from datakit.storage.urls import FileInfo
from datakit.store_access import USUAL, StoreAccess

if TYPE_CHECKING:
    from datakit.download.web.web_listing import WebFile

HUB = "hf://"


@dataclass(frozen=True)
class RemoteOptions:
    """Options for listing a remote source. files: the list of its files, or where it is; None to list what the server
    has. private_redirects: follow redirects to addresses that are not public. commit: to be used in place of the
    revision in a Hub URL; "" to resolve the revision. access: how a bucket is reached. history: of a Git repository,
    the commits are wanted rather than the files.
    """

    files: Sequence[str] | str | None = None
    private_redirects: bool = False
    commit: str = ""
    access: StoreAccess = USUAL
    clock: Clock = REAL
    history: bool = False


@dataclass(frozen=True)
class Found:
    """The files of a source. place: which of its files are wanted. every: all files, wanted or not. describe: turns the
    wanted ones into the listing. resolved: what else identifies the source, for the manifest.
    """

    place: Place
    every: list[FileInfo]
    describe: Callable[[list[FileInfo]], list[SourceFile]]
    resolved: Mapping[str, str] = field(default_factory=dict)


def is_listed_here(url: str) -> bool:
    """Return True for the URLs that this module lists: those of the Hub and of web servers."""
    return url.startswith(HUB) or url.lower().startswith(HTTP)


def look(url: str, options: RemoteOptions) -> Found:
    """List what a source has. Raises a DatakitError."""
    return _on_hub(url, options) if url.startswith(HUB) else _on_web(url, options)


def _on_hub(url: str, options: RemoteOptions) -> Found:
    from datakit.download.hub import hub_listing  # imports an HTTP client, which no local run needs

    asked = parse(url)
    asked = replace(asked, revision=options.commit) if options.commit else asked
    repository = hub_listing.describe(asked, options.private_redirects, options.clock)
    folder, pattern = asked.path, None
    if asked.path not in repository.files and (cut := globs.first_magic(asked.path)) is not None:
        folder = asked.path[:cut].rpartition("/")[0]
        pattern = asked.path.removeprefix(f"{folder}/" if folder else "")
    place = asked.at(repository.commit, folder)
    files = hub_listing.files_in(place, repository, options.private_redirects, options.clock)
    below, only = f"{folder}/" if folder else "", None
    if folder in files:
        below, only = f"{folder.rpartition('/')[0]}/" if "/" in folder else "", folder.rpartition("/")[2]
    base = asked.at(repository.commit, below.rstrip("/")).url()
    found = {path.removeprefix(below): file for path, file in files.items()}
    every = [_info(base, path, file.size, file.blob) for path, file in sorted(found.items())]

    def describe(chosen: list[FileInfo]) -> list[SourceFile]:
        return [
            SourceFile(info.path, info.size, found[info.path].blob, content=found[info.path].content)
            for info in chosen
        ]  # fmt: skip

    resolved = {"commit": repository.commit, "repository": asked.at("").url()}
    return Found(Place(base, pattern and f"/{pattern}", only), every, describe, resolved)


def pinned_commit(url: str, found: Mapping[str, str]) -> str:
    """Return the commit that a Hub URL was resolved to; "" if the URL itself names the commit, or is not of the Hub."""
    if not url.startswith(HUB) or COMMIT.fullmatch(parse(url).revision):
        return ""
    return found.get("commit", "")


def hub_place(base: str, path: str) -> HubAddress:
    """Return the address of a listed file."""
    address = parse(base)
    return replace(address, path=f"{address.path}/{path}" if address.path else path)


def _info(base: str, path: str, size: int, checksum: str) -> FileInfo:
    info = FileInfo(urls.child(base, path), path, size, checksum)
    return globs.marked_if_hidden(info)


def _on_web(url: str, options: RemoteOptions) -> Found:
    from datakit.download.web import web_listing

    whole, query = split_query(url)
    base, private, pattern, only = whole.rstrip("/"), options.private_redirects, None, None
    if options.files is not None:
        found = web_listing.listed_files(base, options.files, private, options.clock)
    elif query or (globs.first_magic(whole) is None and not _is_page(whole, options)):
        base, _, only = base.rpartition("/")
        found = {only: f"{base}/{only}"}
    else:
        if (cut := globs.first_magic(whole)) is not None:
            base = whole[:cut].rpartition("/")[0]
            pattern = whole.removeprefix(base)
        found = {path: f"{base}/{path}" for path in web_listing.page_files(base, private, options.clock)}
    every = [_info(base, path, 0, "") for path in sorted(found)]

    def describe(chosen: list[FileInfo]) -> list[SourceFile]:
        remote = {info.path: web_listing.remote_file(found[info.path], private, query, base) for info in chosen}
        answers = web_listing.probe_all(remote, options.clock)
        refuse_all([one for one in answers if isinstance(one, RefusedError)])
        return [_source_file(base, one) for one in answers if not isinstance(one, RefusedError)]

    return Found(Place(base, pattern, only, query), every, describe)


def _is_page(url: str, options: RemoteOptions) -> bool:
    from datakit.download.web import web_listing

    return url.endswith("/") or web_listing.is_page(url, options.private_redirects, options.clock)


def _source_file(base: str, file: WebFile) -> SourceFile:
    elsewhere = file.url if file.url != f"{base}/{file.path}" else ""
    content = "" if file.etag else f"xxh3-128:{file.checksum}"
    return SourceFile(
        file.path, file.size, file.checksum, content=content, etag=file.etag, last_modified=file.last_modified,
        url=elsewhere,
    )  # fmt: skip
