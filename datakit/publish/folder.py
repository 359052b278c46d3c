"""Publishes to a folder or a bucket.

`publication.json` makes the files a publication, and is written last. Its hash is the revision. The order of a
publication is:

1. Create the claim `.datakit-publishing.json`, which names the new revision and the one that it replaces. Only one
   claim can exist (`storage/atomic.py`). A claim of the same publication is that of an interrupted run, which goes on.
2. Read `publication.json` again. If it is not what the user was shown, give up.
3. Transfer the files that are missing. Before each file, check that the claim is still there.
4. Remove the files that only the earlier publication has, replace `publication.json`, and remove the claim.

While files are replaced, readers may find files of both revisions; the claim tells them so. The same publication must
not be written by two processes at once, because neither could tell the other from an interrupted run; both would write
the same bytes.

A file is transferred unless the destination has one with the same size and SHA-256. On S3, the checksums of the listing
suffice, unless the bucket's encryption makes them something else; then, as in all other stores, the object is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from datakit.errors import CorruptError, NewerRevisionError, NotFoundError, UsageError
from datakit.publish.destination import Difference, Written, removed_paths
from datakit.publish.files import OutgoingFile, Progress, copy_to, local_path, part_bytes, sha256_of
from datakit.publish.record import FILE_NAME, Held, Publication, decode_record, revision_of
from datakit.storage import atomic, removal, urls
from datakit.storage.io_errors import storage_errors
from datakit.storage.json_data import decode
from datakit.storage.manifest import DATA_FOLDER
from datakit.storage.stale_files import remove_dead_files

CLAIM = ".datakit-publishing.json"
SHOWN = 3  # maximum number of files that a message names


class Claim(msgspec.Struct, frozen=True):
    """The content of the claim: the revision that is being written, and the one that it replaces ("" if none)."""

    revision: str
    replaces: str


class Folder:
    """A folder or the prefix of a bucket, as a destination."""

    visibility = ""

    def __init__(self, url: str) -> None:
        self.url = url
        self.states_md5 = urls.protocol(url) == "s3"

    def held(self) -> Held:
        """Read what the folder holds. Raises UsageError if it has files that are not from a publication."""
        found = self._read_record()
        listed = {info.path for info in urls.listing(self.url)}
        if found.record is None and listed and self._read_claim() is None:
            raise UsageError(
                f"{self.url} has files that no publication wrote ({_shown(listed)}); publish to an empty folder"
            )
        if found.record is not None:
            others = {path for path in listed if path.startswith(f"{DATA_FOLDER}/")}
            others -= {file.path for file in found.record.files}
            if others and self._read_claim() is None:
                raise UsageError(
                    f"{self.url} has files beside those of its publication ({_shown(others)}), which readers would "
                    "take for a part of it; move them"
                )
        return found

    def difference(self, files: Sequence[OutgoingFile], record: OutgoingFile, held: Held) -> Difference:
        """Compare sizes and checksums of the files with those in the folder."""
        listed = {info.path: info for info in urls.listing(self.url)}
        missing = [file for file in (*files, record) if not self._holds(file, listed.get(file.path))]
        return Difference(tuple(missing), removed_paths(held, files))

    def write(
        self, files: Sequence[OutgoingFile], record: OutgoingFile, publication: Publication, held: Held,
        progress: Progress,
    ) -> Written:  # fmt: skip
        """Write the publication. Raises NewerRevisionError, StorageError, CorruptError."""
        claim = Claim(revision_of(record.content or b""), held.revision)
        self._take(claim)
        now = self._read_record().revision
        if now not in (held.revision, claim.revision):
            self._release()
            raise NewerRevisionError(
                f"{self.url} holds the revision {now}, but {held.revision or 'no revision'} was there when this "
                "command began, so another publication came first; run it again, which shows what it would replace"
            )
        remove_dead_files(self.url)
        missing = self.difference(files, record, held).missing
        self._transfer([file for file in missing if file is not record], claim, progress)
        for path in removed_paths(held, files):
            removal.remove(urls.join(self.url, path))
        self._require_complete(files)
        self._require(claim)
        self._sync(files)
        if record in missing:
            self._put(record)
        self._release()
        return Written(claim.revision, self.url)

    def _read_record(self) -> Held:
        url = urls.join(self.url, FILE_NAME)
        try:
            data = urls.read_bytes(url)
        except NotFoundError:
            return Held("")
        return Held(revision_of(data), decode_record(data, url))

    def _read_claim(self) -> Claim | None:
        try:
            return decode(urls.read_bytes(self._claim_url), Claim)
        except NotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise CorruptError(f"{self._claim_url} cannot be read: {error}; remove it and run again") from error

    @property
    def _claim_url(self) -> str:
        return urls.join(self.url, CLAIM)

    def _take(self, claim: Claim) -> None:
        content = msgspec.json.encode(claim) + b"\n"
        if atomic.create_bytes(content, self._claim_url):
            return
        found = self._read_claim()
        if found is not None and found != claim:
            raise NewerRevisionError(
                f"{self.url} is being changed to the revision {found.revision} by another publication, or one was "
                f"interrupted; let it end, or run it again. To give it up, remove {self._claim_url}"
            )
        if found is None:  # it has just ended
            self._take(claim)

    def _require(self, claim: Claim) -> None:
        if self._read_claim() != claim:
            raise NewerRevisionError(
                f"{self._claim_url} was removed or replaced, so another publication may have begun; nothing more is "
                "written. Run the command again, which shows what it would replace"
            )

    def _release(self) -> None:
        removal.remove(self._claim_url)

    def _transfer(self, missing: Sequence[OutgoingFile], claim: Claim, progress: Progress) -> None:
        total, done = sum(file.bytes for file in missing), 0
        for file in missing:
            self._require(claim)
            self._put(file)
            done += file.bytes
            progress(done // 1_000_000, total // 1_000_000, "MB written")

    def _put(self, file: OutgoingFile) -> None:
        """Write a file, in place of an existing one. Raises CorruptError if the destination then has other bytes."""
        url = urls.join(self.url, file.path)
        if urls.is_local(url):
            with atomic.staging(url) as path:
                copy_to(file, path)
                with storage_errors(url):
                    atomic.sync_file(path)
                    os.replace(path, urls.local_path(url))
            return
        with local_path(file) as path, storage_errors(url):
            file_system, remote = urls.filesystem(url)
            options = {"chunksize": part_bytes(file.bytes), "max_concurrency": atomic.S3_PARTS_AT_ONCE}
            file_system.put_file(str(path), remote, **(options if self.states_md5 else {}))
            info = file_system.info(remote)
        if not self._holds(file, urls.FileInfo(url, file.path, int(info["size"]), urls.checksum_of(info))):
            raise CorruptError(f"{url} has other bytes than those that were sent; run the same command again")

    def _holds(self, file: OutgoingFile, found: urls.FileInfo | None) -> bool:
        if found is None or found.size != file.bytes:
            return False
        if self.states_md5 and found.checksum in file.etags:
            return True
        return sha256_of(found.url) == file.sha256

    def _require_complete(self, files: Sequence[OutgoingFile]) -> None:
        sizes = {info.path: info.size for info in urls.listing(self.url)}
        wrong = {file.path for file in files if sizes.get(file.path) != file.bytes}
        if wrong:
            raise CorruptError(f"{self.url} lacks files that were written to it ({_shown(wrong)}); run again")

    def _sync(self, files: Sequence[OutgoingFile]) -> None:
        if urls.is_local(self.url):
            atomic.sync_directories(sorted(atomic.folders_above(self.url, (file.path for file in files))))


def _shown(paths: set[str]) -> str:
    names = sorted(paths)
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
