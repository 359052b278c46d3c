"""Lists the files of a repository at one commit, and compares two statements of the Hub about them.

The revision is resolved to a commit once; every later request names this commit, so a branch that moves meanwhile
changes nothing. The files come from the tree of the folder, which has pages. They are compared with the list of all
files in the description of the repository: their number, and each one's name, size and hash. A page that is missing,
or a file that only one of the two knows, is an error that names the files.

Cost: one request for the description, and one for each thousand files of the tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from datakit.download.hub.address import COMMIT, HubAddress
from datakit.download.hub.api import endpoint, read_api, refusal
from datakit.download.web.content_hash import GIT_SHA1, SHA256
from datakit.download.web.patience import REAL, Clock
from datakit.errors import StorageError, counted
from datakit.printable import one_line
from datakit.storage import urls

SHOWN = 5
SHA256_HEX, SHA1_HEX = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class HubFile:
    """A file of a repository: its path, its size, the id of its Git blob, and the hash of its content, as
    `algorithm:hex`.
    """

    path: str
    size: int
    blob: str
    content: str


@dataclass(frozen=True)
class Repository:
    """The files of a repository at a commit, as its description lists them, by path."""

    commit: str
    files: dict[str, HubFile]


def describe(place: HubAddress, private: bool, clock: Clock = REAL) -> Repository:
    """Resolve a revision to a commit, and return all files at this commit. Raises a DatakitError."""

    def ask(api: Any) -> tuple[Any, Any]:
        revision = place.revision or None
        info = api.repo_info(place.repository, repo_type=place.kind, revision=revision, files_metadata=True)
        if getattr(info, "gated", False) and api.token is None and _token() is None:
            raise refusal(place, 401, {"x-error-code": "GatedRepo"})
        return info.sha, [(one.rfilename, one.size, one.blob_id, one.lfs) for one in info.siblings]

    commit, entries = read_api(place, private, clock, ask)
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise StorageError(f"the Hub did not say which commit {place.url()} stands for; run again")
    if COMMIT.fullmatch(place.revision) and commit != place.revision:
        raise StorageError(f"the Hub answered with commit {commit} for {place.url()}; check HF_ENDPOINT ({endpoint()})")
    return Repository(commit, _by_path(place.at(commit), (_file(place, *entry) for entry in entries), "description"))


def _token() -> str | None:
    from huggingface_hub import get_token

    return get_token()


def read_tree(place: HubAddress, private: bool, clock: Clock = REAL) -> dict[str, HubFile]:
    """Return the files below a folder at a commit, by path, as the tree lists them. place: has a commit; its path is
    that of the folder. Raises a DatakitError.
    """

    def ask(api: Any) -> list[HubFile]:
        from huggingface_hub.hf_api import RepoFile

        entries = api.list_repo_tree(
            place.repository, place.path or None, recursive=True, revision=place.revision, repo_type=place.kind
        )
        return [_file(place, one.path, one.size, one.blob_id, one.lfs) for one in entries if isinstance(one, RepoFile)]

    return _by_path(place, read_api(place, private, clock, ask), "tree")


def _file(place: HubAddress, path: Any, size: Any, blob: Any, lfs: Any) -> HubFile:
    found = f"{SHA256}:{lfs.sha256}" if lfs is not None else f"{GIT_SHA1}:{blob}"
    hash_is_one = SHA256_HEX.fullmatch(str(lfs.sha256)) if lfs is not None else True
    if lfs is not None and lfs.size != size:
        raise StorageError(f"the Hub states two sizes of {one_line(str(path))} in {place.shown}; run again later")
    if isinstance(path, str) and not urls.is_below(path):
        raise StorageError(f"the Hub lists {one_line(path)!r}, which no file in {place.shown} can be named; report it")
    if not isinstance(path, str) or not isinstance(size, int) or size < 0 or isinstance(size, bool):
        raise StorageError(f"the Hub states no size of a file of {place.shown}; run again")
    if not hash_is_one or not SHA1_HEX.fullmatch(str(blob)):
        raise StorageError(f"the Hub states no hash of {one_line(path)} in {place.shown}; run again")
    return HubFile(path, size, str(blob), found)


def _by_path(place: HubAddress, files: Iterable[HubFile], what: str) -> dict[str, HubFile]:
    found: dict[str, HubFile] = {}
    for file in files:
        if file.path in found:
            raise StorageError(
                f"the Hub's {what} of {place.shown} lists {one_line(file.path)} twice; run again, and if this happens "
                "again, report it"
            )
        found[file.path] = file
    return found


def require_equal(place: HubAddress, tree: dict[str, HubFile], described: dict[str, HubFile]) -> None:
    """Raise StorageError if the tree and the description do not have the same files with the same sizes and hashes."""
    missing, added = sorted(described.keys() - tree.keys()), sorted(tree.keys() - described.keys())
    changed = sorted(path for path in tree.keys() & described.keys() if tree[path] != described[path])
    if not (missing or added or changed):
        return
    sizes = [sum(file.size for file in files.values()) for files in (tree, described)]
    kinds = (("missing from the tree", missing), ("only in the tree", added), ("with other sizes or hashes", changed))
    clauses = [f"{counted(len(paths), 'file')} {what} ({_first(paths)})" for what, paths in kinds if paths]
    raise StorageError(
        f"the Hub contradicts itself about {place.url()}: its tree lists {counted(len(tree), 'file')} with "
        f"{sizes[0]:,} bytes, but its description {counted(len(described), 'file')} with {sizes[1]:,} bytes; "
        f"{'; '.join(clauses)}; run again later"
    )


def _first(paths: list[str]) -> str:
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return ", ".join(map(one_line, paths[:SHOWN])) + more


def files_in(place: HubAddress, repository: Repository, private: bool, clock: Clock = REAL) -> dict[str, HubFile]:
    """Return the files below a folder (or the one file at the path), by path, after comparing both statements."""
    here = place.at(repository.commit, place.path)
    if place.path in repository.files:
        folder = place.path.rpartition("/")[0]
        tree = read_tree(here.at(repository.commit, folder), private, clock)
        require_equal(here, {path: file for path, file in tree.items() if path == place.path},
                      {place.path: repository.files[place.path]})  # fmt: skip
        return {place.path: repository.files[place.path]}
    below = f"{place.path}/" if place.path else ""
    described = {path: file for path, file in repository.files.items() if path.startswith(below)}
    if not described:
        return {}
    require_equal(here, read_tree(here, private, clock), described)
    return described
