"""Defines and reads the files in `<root>/.leases/`, through which processes on all hosts that share a root see what the
others use.

    use-<process>.json        the steps that a run, a training run, an evaluation or `datakit mixture pack` relies on
    collect-<process>.json    the steps that `datakit gc` or `datakit run --fresh` is about to remove

The process that wrote a file writes it again every RENEW_SECONDS. A file counts as expired after EXPIRED_SECONDS
without such a renewal, that is, after several missed ones. The time of the renewal and the current time are both taken
from the clock of the root's disk or store, because the clocks of the hosts may differ. `lease.py` explains why this
protects a step.

Cost: reading takes one listing, one read per file and, if there are any files, one reading of the clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from datakit.errors import CorruptError, NotFoundError
from datakit.leases.own_folder import file_names, own_folder
from datakit.storage import removal, store_clock, urls
from datakit.storage.json_data import decode
from datakit.storage.manifest import refuse_newer

FOLDER = ".leases"
FORMAT = "datakit.lease/1"
USE, COLLECT = "use", "collect"
RENEW_SECONDS = 30.0
EXPIRED_SECONDS = 300.0


class LeaseFile(msgspec.Struct, frozen=True):
    """The content of a file. steps: the paths of steps relative to the root, including steps that do not exist yet.
    host, pid, command: the process that wrote the file; used only in messages.
    """

    kind: str
    steps: list[str]
    host: str
    pid: int
    command: str
    format: str = FORMAT

    @property
    def holder(self) -> str:
        """A description of the process for messages."""
        return f"{self.command} (process {self.pid} on {self.host})"


@dataclass(frozen=True)
class FoundLease:
    """A file and its content. expired: True if its process has stopped renewing it; the content is then not read, and
    names no steps.
    """

    url: str
    content: LeaseFile
    expired: bool


def read_leases(root: str, kind: str) -> list[FoundLease]:
    """Return all leases of a kind. Raises CorruptError or NewerFormatError if one that has not expired cannot be read,
    because it may name any step, and RetentionError if `.leases` is a link.
    """
    folder, now, found = own_folder(root, FOLDER), None, []
    for name in file_names(folder):
        if not name.startswith(f"{kind}-"):
            continue
        url = urls.join(folder, name)
        try:
            data, renewed = urls.read_bytes(url), urls.modified(url)
        except NotFoundError:  # its process has just ended
            continue
        now = store_clock.now(folder) if now is None else now
        expired = now - renewed >= EXPIRED_SECONDS
        found.append(FoundLease(url, _unread(kind) if expired else _decoded(data, url, kind), expired))
    return found


def remove_expired(leases: list[FoundLease]) -> None:
    """Remove those of these files that have expired. A process whose file was removed notices this and stops relying on
    its lease.
    """
    for lease in leases:
        if lease.expired:
            removal.remove(lease.url)


def _unread(kind: str) -> LeaseFile:
    return LeaseFile(kind, [], "", 0, "")


def _decoded(data: bytes, url: str, kind: str) -> LeaseFile:
    refuse_newer(data, url, FORMAT)
    try:
        content = decode(data, LeaseFile)
    except msgspec.DecodeError as error:
        raise CorruptError(f"{url} cannot be read: {error}; {_remedy()}") from error
    wrong = next((step for step in content.steps if not urls.is_below(step)), None)
    if content.format != FORMAT or content.kind != kind or wrong is not None:
        problem = f"it names {wrong!r} as a step" if wrong is not None else f"it is no lease of the kind {kind!r}"
        raise CorruptError(f"{url} cannot be used: {problem}; {_remedy()}")
    return content


def _remedy() -> str:
    return f"remove the file, or wait until it has not changed for {EXPIRED_SECONDS:.0f} seconds"
