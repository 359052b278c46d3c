"""Publishes to a dataset repository of the Hugging Face Hub, as one commit.

The files are uploaded first (`preupload_lfs_files`), a few at a time. The commit, which only names them, comes last, so
readers see all of a publication or nothing of it. The commit states its parent, the revision that the user was shown;
the Hub refuses it if another commit came first. An interrupted publication goes on: the Hub says which files it already
has, by their SHA-256.

The answer to a commit may be lost although the Hub made the commit. Therefore the repository is read again after a
failed commit, and the commit is repeated only if its parent is still the newest one.

Uploads go through Xet if the library `hf_xet` is installed and not disabled (HF_HUB_DISABLE_XET=1), otherwise through
Git LFS. A new repository is private unless the user asks for a public one.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from datakit.errors import CorruptError, NewerRevisionError, RootError, StorageError, UsageError
from datakit.publish.destination import Difference, Written, removed_paths
from datakit.publish.files import OutgoingFile, Progress, local_path
from datakit.publish.hub_calls import WAITS, failure, new_client, patiently, pause_after
from datakit.publish.record import FILE_NAME, Held, Publication, decode_record

PREFIX = "hf://datasets/"
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
BRANCH = "main"
KIND = "dataset"
FILES_AT_ONCE = 16
MOST_FILES = 25_000  # the Hub's own limit for one commit
FRESH = {".gitattributes"}  # the files of a new repository


class Hub:
    """A dataset repository as a destination. public: create it as a public one if it does not exist."""

    states_md5 = False

    def __init__(self, url: str, public: bool) -> None:
        self.url, self._public = url, public
        self.visibility = "public" if public else "private"
        self._repository = url.removeprefix(PREFIX).rstrip("/")
        if not REPOSITORY.fullmatch(self._repository):
            raise UsageError(f"{url} is not of the form {PREFIX}ORGANIZATION/NAME; the branch is always {BRANCH}")
        self._client = new_client()

    def held(self) -> Held:
        """Read the newest commit, and the publication in it. Raises UsageError if the repository's visibility is not
        what the user asked for, and RootError if the token is not accepted.
        """
        self._call("check the token", self._client.whoami)
        found = self._info()
        if found is None:
            return Held("")
        self._check_visibility(bool(found.private))
        tree = self._tree(found.sha)
        if tree.keys() <= FRESH:
            return Held("")
        return Held(found.sha, self._record(found.sha) if FILE_NAME in tree else None)

    def difference(self, files: Sequence[OutgoingFile], record: OutgoingFile, held: Held) -> Difference:
        """Compare the files with those in the newest commit. Raises UsageError if there are too many."""
        if len(files) >= MOST_FILES:
            raise UsageError(
                f"{len(files):,} files are too many for one commit on the Hub, which takes {MOST_FILES:,}; publish to "
                "a bucket, or make the dataset with fewer partitions"
            )
        tree = self._tree(held.revision) if held.revision else {}
        missing = tuple(file for file in (*files, record) if not _holds(file, tree.get(file.path)))
        return Difference(missing, tuple(path for path in removed_paths(held, files) if path in tree))

    def write(
        self, files: Sequence[OutgoingFile], record: OutgoingFile, publication: Publication, held: Held,
        progress: Progress,
    ) -> Written:  # fmt: skip
        """Upload what is missing, and commit. Raises NewerRevisionError, StorageError, RootError, CorruptError."""
        parent = held.revision or self._create()
        difference = self.difference(files, record, held)
        operations = self._upload(difference.missing, progress)
        operations += [_delete(path) for path in difference.removed]
        message = f"Publish {publication.dataset} ({publication.identity[:12]})"
        expected = (*files, record)
        revision = self._commit(operations, message, parent, expected) if operations else parent
        if wrong := self._wrong(revision, expected):
            raise CorruptError(
                f"the commit {revision} of {self.url} has other bytes than those that were sent, in {wrong[0]} and "
                f"{len(wrong) - 1} more files; run the same command again, with --replaces {revision}"
            )
        return Written(revision, self._page())

    def _call(self, attempt: str, call: Callable[[], Any]) -> Any:
        return patiently(f"{attempt} ({self.url})", call)

    def _info(self) -> Any:
        """Return the library's description of the repository; None if it does not exist or is not visible."""
        return self._call("read its description", lambda: _none_if_missing(self._describe))

    def _describe(self) -> Any:
        return self._client.dataset_info(self._repository, revision=BRANCH)

    def _check_visibility(self, private: bool) -> None:
        if not private and not self._public:
            raise UsageError(f"{self.url} is public, so everyone could read the documents; add --public to allow this")
        if private and self._public:
            raise UsageError(
                f"{self.url} exists and is private; leave --public out, and change it in the repository's settings on "
                "the Hub"
            )

    def _tree(self, revision: str) -> dict[str, Any]:
        """Return the library's description of each file of a commit, by path."""

        def read() -> dict[str, Any]:
            entries = self._client.list_repo_tree(self._repository, recursive=True, revision=revision, repo_type=KIND)
            return {entry.path: entry for entry in entries if hasattr(entry, "blob_id")}

        return self._call("list files", read)

    def _record(self, revision: str) -> Publication:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        url = hf_hub_url(self._repository, FILE_NAME, repo_type=KIND, revision=revision, endpoint=self._client.endpoint)

        def read() -> bytes:
            response = get_session().get(url, headers=build_hf_headers(token=self._client.token), follow_redirects=True)
            hf_raise_for_status(response)
            return response.content

        return decode_record(self._call(f"read {FILE_NAME}", read), f"{self.url}/{FILE_NAME}")

    def _create(self) -> str:
        """Create the repository unless it exists, and return its newest commit. Raises NewerRevisionError if it already
        has files.
        """
        self._call(
            "create the repository",
            lambda: self._client.create_repo(self._repository, repo_type=KIND, private=not self._public, exist_ok=True),
        )
        found = self._info()
        if found is None:
            raise StorageError(f"{self.url} was created, but the Hub does not show it; run the same command again")
        self._check_visibility(bool(found.private))
        if not self._tree(found.sha).keys() <= FRESH:
            raise self._newer(found.sha, "no revision")
        return str(found.sha)

    def _upload(self, missing: Sequence[OutgoingFile], progress: Progress) -> list[Any]:
        """Upload the files, and return the operations of the commit."""
        operations, total, done = [], sum(file.bytes for file in missing), 0
        for start in range(0, len(missing), FILES_AT_ONCE):
            some = missing[start : start + FILES_AT_ONCE]
            with ExitStack() as stack:
                added = [_add(file, stack) for file in some]
                self._call(
                    f"upload {some[0].path} and {len(some) - 1} more files",
                    lambda added=added: self._client.preupload_lfs_files(
                        self._repository, added, repo_type=KIND, revision=BRANCH
                    ),
                )
                for one in added:
                    _keep_content(one)
            operations += added
            done += sum(file.bytes for file in some)
            progress(done // 1_000_000, total // 1_000_000, "MB uploaded")
        return operations

    def _commit(self, operations: list[Any], message: str, parent: str, expected: Sequence[OutgoingFile]) -> str:
        for wait in (*WAITS, None):
            try:
                done = self._client.create_commit(
                    self._repository, operations, commit_message=message, repo_type=KIND, revision=BRANCH,
                    parent_commit=parent,
                )  # fmt: skip
                return str(done.oid)
            except Exception as error:
                reason = failure(f"commit ({self.url})", error)
                if reason is error:
                    raise
                if isinstance(reason, RootError):
                    raise reason from None
                found = self._info()
                now = found.sha if found is not None else ""
                if now != parent:
                    return self._settled(now, parent, expected)
                pause = pause_after(error, wait)
                if pause is None:
                    raise reason from None
                time.sleep(pause)
        raise AssertionError("unreachable: the last try returns or raises")

    def _settled(self, now: str, parent: str, expected: Sequence[OutgoingFile]) -> str:
        """Return the newest commit if it holds this publication, whose answer was lost. Raises NewerRevisionError."""
        if now and not self._wrong(now, expected):
            return now
        raise self._newer(now, parent)

    def _wrong(self, revision: str, expected: Sequence[OutgoingFile]) -> list[str]:
        """Return the paths of the files that a commit lacks, or that have other bytes in it."""
        tree = self._tree(revision)
        return [file.path for file in expected if not _holds(file, tree.get(file.path))]

    def _newer(self, now: str, parent: str) -> NewerRevisionError:
        return NewerRevisionError(
            f"{self.url} has the newer revision {now}, but {parent} was there when this command began; nothing was "
            "changed. Run the command again, which shows what it would replace"
        )

    def _page(self) -> str:
        return f"{self._client.endpoint}/datasets/{self._repository}"


def _none_if_missing(call: Callable[[], Any]) -> Any:
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        return call()
    except RepositoryNotFoundError as error:
        if error.response.status_code in (401, 404):  # the Hub also answers 401 for a name that does not exist
            return None
        raise


def _add(file: OutgoingFile, stack: ExitStack) -> Any:
    """Return the operation that adds a file. Its SHA-256 is known, so the library does not compute it again."""
    from huggingface_hub import CommitOperationAdd

    content = file.content if file.content is not None else str(stack.enter_context(local_path(file)))
    added = CommitOperationAdd(file.path, content)
    if added.upload_info.size != file.bytes:
        raise CorruptError(f"{file.url} changed while it was published; run the same command again")
    added.upload_info.sha256 = bytes.fromhex(file.sha256)
    return added


def _keep_content(added: Any) -> None:
    """Read the content of a file that becomes a part of the commit itself, since its local path may be temporary. The
    library has already forgotten the paths of files that it has uploaded.
    """
    with added.as_file() as file:
        added.path_or_fileobj = file.read()


def _delete(path: str) -> Any:
    from huggingface_hub import CommitOperationDelete

    return CommitOperationDelete(path, is_folder=False)


def _holds(file: OutgoingFile, found: Any) -> bool:
    """Return True if a file of a commit has this content. A small file has the hash of Git, any other its SHA-256."""
    if found is None or found.size != file.bytes:
        return False
    if found.lfs is not None:
        return found.lfs.sha256 == file.sha256
    if file.content is None:
        return False
    header = f"blob {len(file.content)}\0".encode()
    return found.blob_id == hashlib.sha1(header + file.content, usedforsecurity=False).hexdigest()
