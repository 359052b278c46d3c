"""Reads the members of a tar archive in order, in bounded memory, without extracting anything.

Headers are decoded by the standard library, which also verifies their checksums. The loop over the headers is our own,
since `tarfile` ends an archive silently at a damaged header, keeps a list of all members, and reads an extended header
of any size into memory. The names of members are data: they are never used as paths. Devices and directories are passed
over. A link has no content of its own, and is yielded as such, so that a text that was stored as a link is not missed.
An archive must end with its end mark (a block of zeros), so that one that was cut between two members is noticed.

Memory: one member of permitted length, plus the data of one read.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from datakit.normalize.readers.streams import DamagedError

BLOCK = tarfile.BLOCKSIZE
TYPE_AT = 156  # the place of a header's type
EXTENDED_BYTES = 1 << 20  # an extended header holds a name and a few attributes
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_LINKS = (tarfile.LNKTYPE, tarfile.SYMTYPE)
_EXTENDED = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_WITHOUT_DATA = (
    tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE,
)  # fmt: skip
_SUFFIX = "; what follows is lost"


@dataclass(frozen=True)
class Member:
    """A regular file or a link in an archive. offset: the offset of its first header. data: its content; None if its
    name was not wanted, if it is longer than the limit, or if it is a link.
    """

    name: str
    offset: int
    size: int
    data: bytes | None
    is_link: bool = False


class _Bytes:
    """The bytes of a stream, taken in order."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = iter(parts)
        self._buffer = bytearray()
        self.position: int = 0

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes, or fewer at the end of the stream."""
        while len(self._buffer) < size and (part := next(self._parts, None)) is not None:
            self._buffer += part
        taken = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        self.position += len(taken)
        return taken

    def skip(self, size: int) -> None:
        """Pass over the next `size` bytes. Raises DamagedError if there are fewer."""
        while size > len(self._buffer):
            size -= len(self._buffer)
            self.position += len(self._buffer)
            self._buffer = bytearray()
            part = next(self._parts, None)
            if part is None:
                raise DamagedError("the archive ends inside a member")
            self._buffer += part
        del self._buffer[:size]
        self.position += size


class TarReader:
    """Reads one archive. wanted: tells by its name whether a member's content is needed. limit: the longest content
    that is read, in bytes. `position` is the offset of the member that is being read.
    """

    def __init__(self, wanted: Callable[[str], bool], limit: int) -> None:
        self._wanted, self._limit = wanted, limit
        self._stream = _Bytes(())
        self.position: int = 0

    def members(self, parts: Iterable[bytes]) -> Iterator[Member]:
        """Yield the regular files and the links of an archive, up to its end mark. Raises DamagedError."""
        stream = self._stream = _Bytes(parts)
        offset, extended = 0, dict[str, str]()
        while (header := self._header(stream, "path" in extended)) is not None:
            if header.type in _EXTENDED or header.type == tarfile.GNUTYPE_LONGNAME:
                content = self._extended(stream, header.size)
                extended |= _name(content) if header.type == tarfile.GNUTYPE_LONGNAME else _attributes(content)
                continue
            if header.type == tarfile.GNUTYPE_SPARSE or any(name.startswith("GNU.sparse") for name in extended):
                raise DamagedError("a sparse member, which datakit does not read" + _SUFFIX)
            size, name = int(extended.get("size", header.size)), extended.get("path", header.name)
            if header.type in _REGULAR and not name.endswith("/"):
                self.position = offset
                yield self._member(stream, name, offset, size)
            elif header.type in _LINKS:
                self.position = offset
                yield Member(name, offset, 0, None, is_link=True)
            elif header.type not in _WITHOUT_DATA:
                stream.skip(_padded(size))
            if header.type not in (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK):
                extended = {}
            offset = self.position = stream.position if not extended else offset

    def check_end(self) -> None:
        """Raise DamagedError if anything but zeros follows the end mark."""
        while block := self._stream.take(BLOCK):
            if block.strip(b"\0"):
                raise DamagedError("data follows the end mark of the archive; it is not read")

    def _header(self, stream: _Bytes, long_name: bool) -> tarfile.TarInfo | None:
        """Return the next header, or None at the end mark. long_name: True if an extended header has the name."""
        block = stream.take(BLOCK)
        if not block.strip(b"\0") and len(block) == BLOCK:
            return None
        if len(block) < BLOCK:
            raise DamagedError("the archive ends without its end mark, so members may be missing")
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise DamagedError(f"damaged header at byte {stream.position - BLOCK}" + _SUFFIX) from error
        if long_name and block[TYPE_AT : TYPE_AT + 1] == tarfile.AREGTYPE:
            header.type = tarfile.AREGTYPE  # `tarfile` may take it for a directory, judging by a name that is cut off
        if header.size < 0:
            raise DamagedError(f"a negative size in the header at byte {stream.position - BLOCK}" + _SUFFIX)
        return header

    def _extended(self, stream: _Bytes, size: int) -> bytes:
        if size > EXTENDED_BYTES:
            raise DamagedError(f"an extended header of {size} bytes" + _SUFFIX)
        content = stream.take(_padded(size))
        if len(content) < _padded(size):
            raise DamagedError("the archive ends inside an extended header")
        return content[:size]

    def _member(self, stream: _Bytes, name: str, offset: int, size: int) -> Member:
        if size > self._limit or not self._wanted(name):
            stream.skip(_padded(size))
            return Member(name, offset, size, None)
        data = stream.take(_padded(size))
        if len(data) < size:
            raise DamagedError("the archive ends inside a member")
        return Member(name, offset, size, data[:size])


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _name(content: bytes) -> dict[str, str]:
    return {"path": content.rstrip(b"\0").decode("utf-8", "surrogateescape")}


def _attributes(content: bytes) -> dict[str, str]:
    """Return the attributes in a pax header: lines of the form `LENGTH NAME=VALUE`. Raises DamagedError."""
    found: dict[str, str] = {}
    while content:
        digits, _, _ = content.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 9 else 0
        name, equals, value = content[len(digits) + 1 : length - 1].partition(b"=")
        if not equals or length > len(content) or content[length - 1 : length] != b"\n":
            raise DamagedError("a damaged extended header" + _SUFFIX)
        found[name.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        content = content[length:]
    if not found.get("size", "0").isdecimal() or len(found.get("size", "")) > 18:
        raise DamagedError("a damaged extended header" + _SUFFIX)
    return found
