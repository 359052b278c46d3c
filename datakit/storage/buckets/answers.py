"""Defines what a store answers about a bucket and its objects, and refuses answers that say too little."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from datakit.errors import StorageError
from datakit.printable import one_line

ASK = "run again; if the error stays, ask the store's operator, or copy the data elsewhere"
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@dataclass(frozen=True)
class Description:
    """An object: its key, its size in bytes, and the store's checksum of it (its ETag)."""

    key: str
    size: int
    checksum: str


@dataclass(frozen=True)
class Page:
    """A page of a listing. token: stands for the next page; "" if the answer names none. more: what the answer says
    about whether another page follows; None if it says nothing. count: the number of objects that the answer states;
    None if it states none.
    """

    objects: tuple[Description, ...]
    token: str
    more: bool | None
    count: int | None


@dataclass(frozen=True)
class ObjectBytes:
    """The bytes of an object. first: the offset of the first of them. total: the size of the whole object; None if the
    answer does not state it. checksum: that of the object; "" if the answer does not state it. md5: the MD5 of the
    object's content, as 32 hex digits; "" if the answer does not state it, or if the client verifies the content.
    """

    first: int
    total: int | None
    checksum: str
    md5: str
    chunks: Iterator[bytes]


def described(bucket: str, key: object, size: object, checksum: object) -> Description:
    """Return the description of an object. Raises StorageError if a value is missing or impossible."""
    if not isinstance(key, str) or not key:
        raise StorageError(f"the store describes an object of bucket {bucket} without a key; {ASK}")
    number = int(size) if isinstance(size, str) and size.isdecimal() else size
    if not isinstance(number, int) or number < 0:
        raise StorageError(f"the store states no size of {one_line(key)} in bucket {bucket}; {ASK}")
    if not isinstance(checksum, str) or not checksum.strip('"'):
        raise StorageError(
            f"the store states no ETag of {one_line(key)} in bucket {bucket}, so its changes would go unnoticed; {ASK}"
        )
    return Description(key, number, checksum.strip('"'))


def stated_md5(hashes: Iterable[str]) -> str:
    """Return the MD5 in the values of the header `x-goog-hash`, as hex digits; "" if there is none, as for objects that
    were composed of others.

    >>> stated_md5(["crc32c=AAAAAA==,md5=1B2M2Y8AsgTpgAmY7PhCfg=="])
    'd41d8cd98f00b204e9800998ecf8427e'
    """
    for one in ",".join(hashes).split(","):
        name, _, value = one.strip().partition("=")
        if name == "md5":
            return b64decode(value).hex()
    return ""


def sent_range(content_range: str | None, length: int | str | None) -> tuple[int, int | None]:
    """Return the offset of the first byte of an answer, and the size of the whole object. Raises StorageError.

    >>> sent_range("bytes 10-19/20", "10"), sent_range(None, "20")
    ((10, 20), (0, 20))
    """
    if not content_range:
        return 0, None if length is None else int(length)
    found = CONTENT_RANGE.fullmatch(content_range.strip())
    if found is None:
        raise StorageError(f"the store answered with the range {content_range!r}; run again")
    return int(found[1]), int(found[3])
