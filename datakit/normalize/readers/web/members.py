"""Decompresses a web archive member by member, and goes on behind a damaged member.

A web archive is usually compressed record by record: each gzip member (or zstd frame) holds one record. Unlike other
compressed files, such an archive therefore loses only one record if a member is damaged. A member's content is used
only if the whole member is sound. For members of up to HELD_BYTES this costs nothing: their content is held until the
checksum at their end has been compared. A larger member is decompressed twice, the first time only to check it. Small
gzip members are decompressed in one call each (small_members.py), and all others as streams. After a damaged member,
the search goes on at the next place where a member begins whose content looks like a record. A file that ends inside
its last member is cut off: what could be decoded is used, as in other compressed files.

A file may also be one large member, as `gzip archive.warc` makes it. It is read, too, but then it can neither be cut
into slices nor be read behind a damaged place.

Cost: about 1 ms per MB of content. Memory: HELD_BYTES and one piece of input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from datakit.errors import UnreadableError
from datakit.normalize.formats import MAGIC, WARC_MARK, check_head, compression_of, is_skippable
from datakit.normalize.readers.streams import DECODING_ERRORS, HEAD_BYTES, OPENERS, OUTPUT_BYTES
from datakit.normalize.readers.web.pieces import Damage, Piece
from datakit.normalize.readers.web.small_members import small_members
from datakit.printable import one_line

INPUT_BYTES = 64 << 10  # small, because a decompressor copies what follows a member; a record takes about 10 KB
HELD_BYTES = 8 << 20  # more than almost every record; crawlers usually truncate pages at 1 MiB or 5 MiB
SHOWN_BYTES = 512  # of a member's content, to see whether a record begins there
ZSTD_DICTIONARY = b"\x5d\x2a\x4d\x18"  # the skippable frame that holds the dictionary of a .warc.zst file
# The first line of a WARC record, and that of an ARC record: URL, IP address, date, MIME type, ..., length. Both are at
# most `window.LONGEST_LINE` long.
WARC_LINE = re.compile(rb"WARC/\d{1,3}\.\d{1,3}\r?\n")
ARC_LINE = re.compile(
    rb"(?P<url>[A-Za-z][A-Za-z0-9+.-]{0,30}:[^\r\n]{0,8000}?) (?P<ip>[0-9A-Fa-f.:]{1,60}|-) (?P<date>\d{8,20}) "
    rb"(?P<mime>[^ \r\n]{1,250}) (?:(?P<code>\d{3}|-) [^ \r\n]{1,250} [^ \r\n]{1,4000} -?\d{1,20} [^ \r\n]{1,1000} )?"
    rb"(?P<length>[^ \r\n]{1,20})\r?\n"
)


def is_record_line(data: bytes) -> bool:
    """Return True if `data` begins with the first line of a WARC or ARC record."""
    return WARC_LINE.match(data) is not None or ARC_LINE.match(data) is not None


def members(file: BinaryIO, path: str, start: int = 0) -> Iterator[Piece | Damage]:
    """Yield the content of an open archive, from byte `start` of the stored file on, at which a record must begin.

    Raises UnreadableError if the file is of another kind.
    """
    compression = compression_of(path)
    if compression is not None and compression not in OPENERS:
        raise UnreadableError(
            f"{one_line(path)} is compressed with {compression}, in which records of web archives have no borders; "
            "decompress it, or exclude it"
        )
    head = file.read(HEAD_BYTES)
    if head.startswith(ZSTD_DICTIONARY):
        raise UnreadableError(
            f"{one_line(path)} is compressed with a zstd dictionary of its own; decompress it (zstd -d with the "
            "dictionary in its first frame, or a tool for .warc.zst files), or exclude it"
        )
    if compression is not None or not (is_record_line(head) or head.startswith(WARC_MARK)):
        check_head(path, head, compression)
    file.seek(start)
    if compression is None:
        while data := file.read(OUTPUT_BYTES):
            yield Piece(data, start, False)
            start += len(data)
    else:
        yield from _Members(file, compression, start).pieces()


class _DamagedMemberError(Exception):
    """A member cannot be decoded."""


class _CutOffError(Exception):
    """The file ends inside a member."""


class _Members:
    """Reads the members of one compressed file. The stored bytes from `_position` on are `_data` and the rest of the
    file.
    """

    def __init__(self, file: BinaryIO, compression: str, start: int) -> None:
        self._file, self._magic, self._kind = file, MAGIC[compression], compression
        self._open: Callable[[], Any] = OPENERS[compression]
        self._data, self._position = b"", start

    def pieces(self) -> Iterator[Piece | Damage]:
        """Yield the content of all members, and the damaged members between them."""
        while True:
            if self._kind == "gzip":
                self._data, self._position = yield from small_members(
                    self._file, self._data, self._position, input_bytes=INPUT_BYTES, longest=HELD_BYTES
                )
            if not self._pass_padding():
                return
            begin = self._position
            if not self._at_magic():
                yield Damage(begin, f"no {self._kind} member begins at byte {begin} of the stored file")
                self._find_member(begin + 1)
                continue
            try:
                yield from self._member(begin)
            except _DamagedMemberError as error:
                yield Damage(begin, f"the {self._kind} member at byte {begin} of the stored file is damaged ({error})")
                self._find_member(begin + 1)
            except _CutOffError:
                yield from self._cut_off(begin)

    def _member(self, begin: int) -> Iterator[Piece]:
        """Yield the content of the member at `begin` if all is sound. Raises _DamagedMemberError, _CutOffError."""
        held: list[bytes] = []
        size = 0
        for output in self._outputs():
            size += len(output)
            if size <= HELD_BYTES:
                held.append(output)
        if size > HELD_BYTES:
            self._seek(begin)
            yield from _as_pieces(self._outputs(), begin)
        else:
            yield Piece(b"".join(held), begin, True)

    def _cut_off(self, begin: int) -> Iterator[Piece | Damage]:
        """Yield what the last member holds or, if another one follows, only its damage: then its length is wrong."""
        self._find_member(begin + 1)
        reason = f"the file ends inside the {self._kind} member at byte {begin} of the stored file"
        if self._data:
            yield Damage(begin, reason + ", although others follow it")
            return
        self._seek(begin)
        try:
            yield from _as_pieces(self._outputs(), begin)
        except _CutOffError:
            yield Damage(begin, reason)

    def _outputs(self) -> Iterator[bytes]:
        """Decode the member at the current position, and move behind it. Raises _DamagedMemberError, _CutOffError."""
        stream = self._open()
        data, self._data = self._data, b""
        while not stream.eof:
            if stream.needs_input and not data and not (data := self._read()):
                raise _CutOffError
            try:
                output = stream.decompress(data, OUTPUT_BYTES)
            except DECODING_ERRORS as error:
                raise _DamagedMemberError(str(error)) from error
            self._position, data = self._position + len(data), b""
            if output:
                yield output
        self._data = stream.unused_data
        self._position -= len(self._data)

    def _read(self) -> bytes:
        return self._file.read(INPUT_BYTES)

    def _seek(self, position: int) -> None:
        self._file.seek(position)
        self._data, self._position = b"", position

    def _fill(self, size: int) -> None:
        while len(self._data) < size and (more := self._read()):
            self._data += more

    def _pass_padding(self) -> bool:
        """Move past zero padding. Return False at the end of the file."""
        while True:
            self._fill(1)
            rest = self._data.lstrip(b"\0")
            self._position += len(self._data) - len(rest)
            self._data = rest
            if rest:
                return True
            if not (more := self._read()):
                return False
            self._data = more

    def _at_magic(self) -> bool:
        self._fill(len(self._magic) + 4)
        return self._data.startswith(self._magic) or (self._kind == "zstd" and is_skippable(self._data[:5]))

    def _find_member(self, start: int) -> None:
        """Move to the first place, from byte `start` on, where a member begins whose content looks like a record, or to
        the end of the file.
        """
        self._seek(start)
        while True:
            self._fill(INPUT_BYTES)
            place = self._data.find(self._magic)
            if place < 0:
                if len(self._data) < INPUT_BYTES:
                    self._position, self._data = self._position + len(self._data), b""
                    return
                place = len(self._data) - len(self._magic) + 1
            elif self._begins_record(place):
                self._position, self._data = self._position + place, self._data[place:]
                return
            else:
                place += 1
            self._position, self._data = self._position + place, self._data[place:]

    def _begins_record(self, place: int) -> bool:
        self._fill(place + 4096)
        try:
            return is_record_line(self._open().decompress(self._data[place : place + 4096], SHOWN_BYTES))
        except DECODING_ERRORS:
            return False


def _as_pieces(outputs: Iterator[bytes], begin: int) -> Iterator[Piece]:
    first = True
    for output in outputs:
        yield Piece(output, begin, first)
        first = False
