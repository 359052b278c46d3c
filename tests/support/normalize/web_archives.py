"""Writes web archives byte by byte, so that tests can break them in any place."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path

import zstandard

from datakit.engine.task import Tolerance
from datakit.normalize.config import Config
from datakit.normalize.formats import WARC
from datakit.normalize.readers.base import ReadContext
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.web.records import Broken, Record, records_of
from datakit.normalize.record_counts import RecordCounts

HTTP = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"
DATE = "2020-01-02T03:04:05Z"
COMPRESSIONS = {
    ".gz": lambda data: gzip.compress(data, 6, mtime=0),
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,  # as zstd does; else damage can go unnoticed
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    "": bytes,
}


def warc_record(
    block: bytes, kind: str = "response", number: int = 0, length: int | None = None, **headers: str
) -> bytes:
    """A WARC record. length: the Content-Length to state, if not the block's. headers: with _ in place of -."""
    types = {"response": "application/http; msgtype=response", "request": "application/http; msgtype=request"}
    lines = {
        "WARC-Type": kind,
        "WARC-Record-ID": f"<urn:uuid:{number:032x}>",
        "WARC-Date": DATE,
        "WARC-Target-URI": f"http://example.com/{number}",
        "Content-Type": types.get(kind, "text/plain"),
        "Content-Length": str(len(block) if length is None else length),
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    head = "WARC/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
    return head.encode("utf-8", "surrogateescape") + b"\r\n" + block + b"\r\n\r\n"


def response(payload: bytes, number: int = 0, http: bytes = HTTP, **headers: str) -> bytes:
    """A WARC record of an HTTP response with this payload."""
    return warc_record(http + b"\r\n" + payload, "response", number, None, **headers)


def page(text: str) -> bytes:
    """An HTML page with a paragraph of this text."""
    return f"<html><head><title>T</title></head><body><p>{text}</p></body></html>".encode()


def chunked(payload: bytes, size: int = 50) -> bytes:
    """A payload in HTTP's chunked transfer encoding."""
    parts = [payload[at : at + size] for at in range(0, len(payload), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def write_archive(path: Path, records: Sequence[bytes]) -> list[tuple[int, int]]:
    """Write an archive, each record as a member of its own; return the (content offset, stored offset) of each."""
    compress, places, data, position = COMPRESSIONS.get(path.suffix, bytes), [], b"", 0
    for record in records:
        places.append((position, len(data)))
        data += compress(record)
        position += len(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return places


def context_of(folder: Path, **config: object) -> ReadContext:
    """A context in which files of the folder are read."""
    return ReadContext(Inputs(str(folder)), Config(**config), RecordCounts(Tolerance(1 << 60)))  # pyright: ignore[reportArgumentType]


def cut(path: Path, kind: str = WARC, start: int = 0, origin: int = 0, **config: object) -> Iterator[Record | Broken]:
    """The records of an archive."""
    return records_of(context_of(path.parent, **config), path.name, kind, start=start, origin=origin)
