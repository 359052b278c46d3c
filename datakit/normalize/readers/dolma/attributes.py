"""Reads a file of attributes in Dolma's form: JSON Lines of `{"id": ..., "attributes": {...}}`.

A line that is not of this form, and a damaged file, is an error that names the file: without it, it is not known which
attributes belong to the documents that follow. Memory: one chunk of about 4 MiB, or one line of permitted length.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import msgspec
import orjson

from datakit.errors import UnreadableError
from datakit.normalize.readers.base import ReadContext, longest_record
from datakit.normalize.readers.line_chunks import BYTE_ORDER_MARK, LineCutter
from datakit.normalize.readers.streams import DamagedError, decompressed
from datakit.printable import one_line

REPAIR = "write the file again, or exclude the folder of attributes"


class Entry(msgspec.Struct, frozen=True):
    """The attributes of one document. offset: the offset of the line in the uncompressed file."""

    id: str
    attributes: dict[str, Any]
    offset: int


def read_attributes(context: ReadContext, path: str) -> Generator[Entry]:
    """Yield the entries of a file, in order. Raises UnreadableError."""

    def too_long(offset: int) -> None:
        raise _error(path, offset, "a line longer than max_document_bytes")

    cutter = LineCutter(0, None, longest_record(context.config), too_long)
    with context.inputs.open(path) as file:
        try:
            for offset, data in cutter.chunks(decompressed(file, path)):
                yield from _entries(path, offset, data)
        except DamagedError as error:
            raise _error(path, cutter.position, str(error)) from error


def _entries(path: str, offset: int, data: bytes) -> Iterator[Entry]:
    for line in data.split(b"\n"):
        if content := line.removeprefix(BYTE_ORDER_MARK).strip():
            yield _entry(path, offset, content)
        offset += len(line) + 1


def _entry(path: str, offset: int, line: bytes) -> Entry:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise _error(path, offset, "a line that is not JSON") from error
    identity = value.get("id") if isinstance(value, dict) else None
    attributes = value.get("attributes") if isinstance(value, dict) else None
    if not isinstance(identity, str | int) or not isinstance(attributes, dict):
        raise _error(path, offset, "a line without an `id` and an object `attributes`")
    return Entry(str(identity), attributes, offset)


def _error(path: str, offset: int, what: str) -> UnreadableError:
    return UnreadableError(f"{one_line(path)}: at byte {offset}, {what}; {REPAIR}")
