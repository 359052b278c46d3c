"""Parses commit objects: their parents, the date of the author, and the message in UTF-8.

A message without a stated encoding is taken as it is; normalize repairs what is not valid UTF-8. Names and addresses of
people are not read. A date that no calendar has is None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_DATE = re.compile(rb"> (-?\d{1,18}) [+-]\d{4}")
_FIRST, _LAST = -62_135_596_800, 253_402_300_799  # the years 1 to 9999, in seconds since 1970
# Python knows further encodings, some of which are slow or mean something else.
_ENCODING = re.compile(
    r"iso-?8859-?\d{1,2}|latin-?1|(windows-|cp)125\d|koi8-[ru]|euc-?(jp|kr)|shift[_-]?jis|gbk|gb2312|gb18030|big5",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Commit:
    """A commit. parents: their ids. author_ms: the author's date in milliseconds since 1970, or None. message: in
    UTF-8, unless its encoding is unknown.
    """

    identity: str
    parents: tuple[str, ...]
    author_ms: int | None
    message: bytes


def parse_commit(identity: str, data: bytes) -> Commit:
    """Parse the content of a commit object.

    >>> parse_commit("1f", b"tree 2e\\nparent 3d\\nauthor a <a@b> 86400 +0100\\n\\nFix it\\n")
    Commit(identity='1f', parents=('3d',), author_ms=86400000, message=b'Fix it\\n')
    """
    head, _, message = data.partition(b"\n\n")
    fields = [(name, value) for name, _, value in (line.partition(b" ") for line in head.split(b"\n"))]
    known = dict(reversed(fields))  # the first of each name
    parents = tuple(value.decode("ascii", "replace") for name, value in fields if name == b"parent")
    encoding = known.get(b"encoding", b"").decode("ascii", "replace")
    return Commit(identity, parents, _date(known.get(b"author", b"")), _in_utf8(message, encoding))


def _date(author: bytes) -> int | None:
    found = _DATE.search(author)
    seconds = int(found[1]) if found else None
    return seconds * 1000 if seconds is not None and _FIRST <= seconds <= _LAST else None


def _in_utf8(message: bytes, encoding: str) -> bytes:
    if not _ENCODING.fullmatch(encoding):
        return message
    try:
        return message.decode(encoding).encode()
    except (LookupError, UnicodeError):
        return message
