"""Decodes the payload of an HTTP response (chunked; gzip, deflate, br, zstd), within a limit on its size.

Crawlers often store a payload decoded, but keep the server's header. Therefore a payload that is evidently not encoded
in the stated way is taken as it is: one without a chunk's length at its beginning, without the first bytes of gzip or
zstd, or (for br and deflate, which have no such mark) one that cannot be decoded and whose beginning is UTF-8 text
without control characters. Any other payload that cannot be decoded to its end is broken. An encoding that no standard
defines is ignored; one that is not supported makes the record broken.

FastWARC's decoders are not used (version 2.0): that of chunks takes a payload that ends between two chunks for a whole
one, and refuses extensions and trailers; the others do not report truncated gzip data. Instead, isal, brotli and
zstandard are used directly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import brotli
from isal import igzip_lib

from datakit.normalize.formats import MAGIC
from datakit.normalize.readers.streams import DECODING_ERRORS, OPENERS, OUTPUT_BYTES
from datakit.normalize.readers.web.errors import BrokenRecordError
from datakit.normalize.readers.web.pieces import View

CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
CHUNK_END = re.compile(rb"\r?\n")
UNSUPPORTED = ("compress", "x-compress", "sdch", "exi", "pack200-gzip", "dcb", "dcz", "aes128gcm")
MOST_ENCODINGS = 4  # more than any server applies
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")
SHOWN_BYTES = 1024
INPUT_BYTES = 64 << 10
ZSTD_BYTES = 256  # small, because zstandard's output is not limited: up to 128 KiB per 4 bytes
IgzipDecompressor: Any = igzip_lib.IgzipDecompressor
ERRORS = (*DECODING_ERRORS, brotli.error)


def decoded(payload: View, encodings: tuple[str, ...], limit: int) -> View:
    """Return a payload without its encodings. encodings: in the order in which they were applied. limit: in bytes.

    Raises BrokenRecordError.
    """
    if len(encodings) > MOST_ENCODINGS:
        raise BrokenRecordError(f"it states {len(encodings)} encodings")
    if encodings:
        found = bytes(payload)
        for name in reversed(encodings):
            found = _decoded(found, name, limit)
        payload = found
    if len(payload) > limit:
        raise BrokenRecordError(f"its payload is longer than max_document_bytes ({limit})")
    return payload


def _decoded(payload: bytes, name: str, limit: int) -> bytes:
    if name in UNSUPPORTED:
        raise BrokenRecordError(f"its encoding {name} is not supported")
    decode = DECODERS.get(name.removeprefix("x-"))
    if decode is None or not payload:
        return payload
    try:
        found = decode(payload, limit)
    except ERRORS as error:
        if name in ("br", "deflate") and _is_plain(payload):
            return payload
        raise BrokenRecordError(f"its payload cannot be decoded as {name}") from error
    if len(found) > limit:
        raise BrokenRecordError(f"its decoded payload is longer than max_document_bytes ({limit})")
    return found


def _is_plain(payload: bytes) -> bool:
    """Return True if the payload begins with UTF-8 text. A character cut off at the end of the beginning is allowed."""
    try:
        text = payload[:SHOWN_BYTES].decode()
    except UnicodeDecodeError as error:
        if len(payload) <= SHOWN_BYTES or error.start < SHOWN_BYTES - 3:
            return False
        text = payload[: error.start].decode()
    return not CONTROL.search(text)


def _chunked(payload: bytes, limit: int) -> bytes:
    """Join chunks up to the last one, which is empty. What follows it is ignored: trailers, or left-over data."""
    parts, size, at = list[bytes](), 0, 0
    while found := CHUNK_LINE.match(payload, at):
        length, at = int(found[1], 16), found.end()
        if not length or size > limit:
            return b"".join(parts)
        parts.append(payload[at : at + length])
        end = CHUNK_END.match(payload, at + length)
        if end is None:
            raise EOFError("a chunk does not end where it should")
        size, at = size + length, end.end()
    if not at:
        return payload
    raise EOFError("the payload ends before its last chunk")


def _marked(kind: str) -> Callable[[bytes, int], bytes]:
    """Return a decoder of gzip members or zstd frames, which begin with a mark."""

    def decode(payload: bytes, limit: int) -> bytes:
        if not payload.startswith(MAGIC[kind]):
            return payload
        return _joined(_streams(payload, OPENERS[kind], MAGIC[kind]), limit)

    return decode


def _streams(payload: bytes, opened: Callable[[], Any], mark: bytes) -> Iterator[bytes]:
    """Yield the content of the streams at the beginning of a payload. What follows them is ignored, as browsers do.
    mark: the first bytes of a stream; if empty, there is only one stream.
    """
    at, step = 0, ZSTD_BYTES if mark == MAGIC["zstd"] else INPUT_BYTES
    while payload.startswith(mark, at):
        stream = opened()
        while not stream.eof:
            data = payload[at : at + step] if stream.needs_input else b""
            if stream.needs_input and not data:
                raise EOFError("the payload ends inside a compressed stream")
            at += len(data)
            yield stream.decompress(data, OUTPUT_BYTES)
        at -= len(stream.unused_data)
        if not mark:
            return


def _deflated(payload: bytes, limit: int) -> bytes:
    """Decode zlib data or, as some servers send, deflate data without zlib's header."""
    try:
        return _joined(_streams(payload, lambda: IgzipDecompressor(flag=igzip_lib.DECOMP_ZLIB), b""), limit)
    except ERRORS:
        return _joined(_streams(payload, lambda: IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE), b""), limit)


def _brotli(payload: bytes, limit: int) -> bytes:
    return _joined(_brotli_parts(payload), limit)


def _brotli_parts(payload: bytes) -> Iterator[bytes]:
    stream, data = brotli.Decompressor(), payload
    while not stream.is_finished():
        output = stream.process(data, output_buffer_limit=OUTPUT_BYTES)
        data = b""
        if not output and not stream.is_finished() and stream.can_accept_more_data():
            raise EOFError("the payload ends inside the compressed stream")
        yield output


def _joined(outputs: Iterator[bytes], limit: int) -> bytes:
    """Join outputs until they exceed the limit."""
    parts, size = list[bytes](), 0
    for output in outputs:
        parts.append(output)
        size += len(output)
        if size > limit:
            break
    return b"".join(parts)


DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "chunked": _chunked,
    "gzip": _marked("gzip"),
    "zstd": _marked("zstd"),
    "deflate": _deflated,
    "br": _brotli,
}
