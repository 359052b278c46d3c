"""Prepares a publication, so that the user can see what it would do, and then carries it out.

    prepared = prepare("data/shelf", "hf://datasets/org/shelf")   # reads; changes nothing
    published = publish(prepared)                                 # transfers what is missing

`prepare` reads all documents once, for their hashes. `publish` replaces exactly the revision that `prepare` has found;
if there is another one by then, it raises NewerRevisionError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from datakit.errors import NewerRevisionError, UsageError
from datakit.leases.lease import USE, Lease
from datakit.publish import card, hub
from datakit.publish.destination import Destination, Difference, Written
from datakit.publish.documents import Documents, find_documents
from datakit.publish.files import OutgoingFile, Progress, data_files, small_file
from datakit.publish.folder import Folder
from datakit.publish.record import FILE_NAME, Held, Publication, PublishedFile
from datakit.storage import urls

Say = Callable[[str], None]
SHORTEST_REVISION = 7  # digits of a revision that must be given at least


def _silent(done: int, total: int, what: str) -> None:
    return None


@dataclass(frozen=True)
class Prepared:
    """A publication that has not begun. held: what the destination holds; difference: what would be transferred."""

    documents: Documents
    destination: Destination = field(repr=False)
    files: tuple[OutgoingFile, ...] = field(repr=False)
    record: OutgoingFile = field(repr=False)
    publication: Publication = field(repr=False)
    held: Held = field(repr=False)
    difference: Difference = field(repr=False)

    @property
    def is_published(self) -> bool:
        """True if the destination already holds this publication."""
        return not self.difference.missing and not self.difference.removed

    @property
    def replaced(self) -> str:
        """The revision that the publication would replace; "" if there is none, or if nothing would change."""
        return "" if self.is_published else self.held.revision


@dataclass(frozen=True)
class Published:
    """A completed publication. changed: the number of files that the earlier revision lacked, and bytes: their size."""

    revision: str
    url: str
    documents: int
    files: int
    changed: int
    bytes: int


def prepare(target: str, url: str, *, public: bool = False, progress: Progress = _silent) -> Prepared:
    """Find the documents of a dataset or a consolidate step, and compare them with what the destination holds.

    url: a folder, a bucket URL, or `hf://datasets/ORGANIZATION/NAME`. public: create a repository that everyone can
    read. Raises UsageError, LicenseError, CorruptError, RootError and StorageError.
    """
    documents = find_documents(target)
    destination = _destination(url, public)
    held = destination.held()
    data = data_files(documents.directory, documents.manifest, progress, etags=destination.states_md5)
    lineage = card.lineage_file(documents)
    files = (
        *data,
        small_file(card.LINEAGE, lineage),
        small_file(card.CROISSANT, card.croissant_file(documents, lineage)),
        small_file(card.FILE_NAME, card.render_card(documents).encode()),
    )
    publication = _publication(documents, files)
    record = small_file(FILE_NAME, publication.encode())
    difference = destination.difference(files, record, held)
    return Prepared(documents, destination, files, record, publication, held, difference)


def require_replaced(prepared: Prepared, replaces: str | None) -> None:
    """Raise NewerRevisionError unless the destination is empty, holds this publication, or holds the revision that
    begins with `replaces`.
    """
    replaced = prepared.replaced
    named = replaces is not None and len(replaces) >= SHORTEST_REVISION
    if replaces is not None and not (named and (replaced or prepared.held.revision).startswith(replaces)):
        raise NewerRevisionError(
            f"{prepared.destination.url} holds {prepared.held.revision or 'no revision'}, not {replaces}; nothing was "
            "changed"
        )
    if replaced and replaces is None:
        raise NewerRevisionError(
            f"{prepared.destination.url} holds the revision {replaced}, which would be replaced; to allow this, add "
            f"--replaces {replaced}"
        )


def publish(prepared: Prepared, *, progress: Progress = _silent, say: Say = lambda text: None) -> Published:
    """Carry out a publication. An interrupted one goes on where it ended. say: shows a message to the user. Raises
    NewerRevisionError, StorageError, RootError, CorruptError.
    """
    with _lease(prepared.documents, say):
        written: Written = prepared.destination.write(
            prepared.files, prepared.record, prepared.publication, prepared.held, progress
        )
    sent = prepared.difference.missing
    size = sum(file.bytes for file in sent)
    return Published(written.revision, written.url, prepared.publication.rows, len(prepared.files) + 1, len(sent), size)


def _destination(url: str, public: bool) -> Destination:
    if url.startswith("hf://"):
        return hub.Hub(url, public)
    if public:
        raise UsageError(f"--public has no effect on {url}; it is for hf://; set the access of a bucket or a folder")
    if urls.protocol(url) in ("http", "https"):
        raise UsageError(
            f"{url} is the address of a web server, which cannot be written; give a folder, s3:// or hf://"
        )
    return Folder(urls.absolute(url))


def _publication(documents: Documents, files: tuple[OutgoingFile, ...]) -> Publication:
    manifest = documents.manifest
    listed = sorted(
        (PublishedFile(one.path, one.bytes, one.sha256, one.rows) for one in files), key=lambda one: one.path
    )
    return Publication(
        manifest.dataset, manifest.stage, manifest.identity, manifest.fingerprint, manifest.checksum,
        manifest.totals.rows, listed,
    )  # fmt: skip


@contextmanager
def _lease(documents: Documents, say: Say) -> Iterator[None]:
    """Keep the step from `datakit gc` while its files are read."""
    if not documents.root:
        yield
        return
    with Lease(documents.root, USE, "datakit publish", say) as lease:
        lease.hold_finished([documents.directory])
        yield
