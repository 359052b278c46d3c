"""Defines what a destination of a publication must offer, and what it reports.

A publication has three parts, whatever the destination: `held` reads what is there, `missing` compares it with the
files, and `write` transfers what is missing and makes it the new revision, unless the destination no longer holds what
`held` returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from datakit.publish.files import OutgoingFile, Progress
from datakit.publish.record import Held, Publication


@dataclass(frozen=True)
class Difference:
    """The changes that a publication would make. missing: the files to transfer. removed: the paths of files of the
    earlier publication that the new one does not have.
    """

    missing: tuple[OutgoingFile, ...]
    removed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Written:
    """A completed publication: its revision and a URL under which people find it."""

    revision: str
    url: str


class Destination(Protocol):
    """A place for a publication. url: as the user gave it. visibility: "private" or "public"; "" if datakit does not
    decide it. states_md5: True for a bucket whose listings state MD5 checksums.
    """

    url: str
    visibility: str
    states_md5: bool

    def held(self) -> Held:
        """Read what the destination holds now."""
        ...

    def difference(self, files: Sequence[OutgoingFile], record: OutgoingFile, held: Held) -> Difference:
        """Compare the files of a publication with what the destination holds."""
        ...

    def write(
        self, files: Sequence[OutgoingFile], record: OutgoingFile, publication: Publication, held: Held,
        progress: Progress,
    ) -> Written:  # fmt: skip
        """Transfer what is missing, and make it the new revision. Raises NewerRevisionError if the destination no
        longer holds `held`.
        """
        ...


def removed_paths(held: Held, files: Sequence[OutgoingFile]) -> tuple[str, ...]:
    """Return the paths of an earlier publication's files that the new one does not have."""
    now = {file.path for file in files}
    return tuple(file.path for file in held.record.files if file.path not in now) if held.record else ()
