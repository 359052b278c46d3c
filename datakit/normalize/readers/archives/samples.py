"""Groups the members of a tar archive into samples, as WebDataset does: the name of a member up to the first dot of its
last part is the sample's key, and what follows that dot is the member's extension. Consecutive members with the same
key form one sample.

Of each sample, the members `.txt` and `.json` are kept; others are counted. Memory: one sample.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from datakit.normalize.readers.archives.tar_members import Member
from datakit.normalize.readers.streams import DamagedError

KINDS = ("txt", "json")
IGNORED = "normalize/members_ignored"
_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)


@dataclass
class Sample:
    """A sample. offset: the offset of its first member that is kept. problem: why it cannot be used, or ""."""

    key: str
    offset: int
    members: dict[str, bytes] = field(default_factory=dict)
    problem: str = ""

    @property
    def size(self) -> int:
        """The size of its members in bytes."""
        return sum(map(len, self.members.values()))

    def add(self, kind: str, member: Member, limit: int) -> None:
        """Add a member to the sample."""
        if kind in self.members:
            self.problem = f"two members with the extension .{kind}"
        elif member.is_link:
            self.problem = f"its .{kind} is a link, which is not followed; write the archive without links"
        elif member.data is None:
            self.problem = f"its .{kind} is longer than max_document_bytes ({limit})"
        else:
            self.members[kind] = member.data


def parts_of(name: str) -> tuple[str, str] | None:
    """Return the key and the extension of a member, or None if its name has none.

    >>> parts_of("a/b.txt"), parts_of("./a.b.JSON"), parts_of("a/.hidden"), parts_of("a.b/c")
    (('a/b', 'txt'), ('./a', 'b.json'), None, None)
    """
    found = _NAME.fullmatch(name)
    return None if found is None else (found.group(1), found.group(2).lower())


def is_kept(name: str) -> bool:
    """Return True if the content of a member with this name is needed."""
    parts = parts_of(name)
    return parts is not None and parts[1] in KINDS


def samples_of(members: Iterable[Member], limit: int, counters: Counter[str]) -> Iterator[Sample]:
    """Yield the samples. Members that are not kept are counted under IGNORED; a sample of only such members is none.

    Raises DamagedError if `members` does. The sample before the damage may lack members, so it has a problem.
    """
    current: Sample | None = None
    try:
        for member in members:
            parts = parts_of(member.name)
            if parts is None or parts[1] not in KINDS:
                counters[IGNORED] += 1
                continue
            key, kind = parts
            if current is None or current.key != key:
                if current is not None:
                    yield current
                current = Sample(key, member.offset)
            current.add(kind, member, limit)
    except DamagedError:
        if current is not None:
            current.problem = "the archive is damaged in this sample or right after it"
            yield current
        raise
    if current is not None:
        yield current
