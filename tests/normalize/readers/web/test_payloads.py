"""Payloads of HTTP responses: decoded within limits, or broken, but never silently cut short."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from datakit.normalize.readers.web.errors import BrokenRecordError
from datakit.normalize.readers.web.payloads import decoded
from tests.support.normalize.web_archives import chunked, page

PAGE = page("Hello, world. " * 40)
LIMIT = 1 << 20


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": lambda data: brotli.compress(data, quality=3),
    "zstd": zstandard.ZstdCompressor().compress,
    "chunked": chunked,
}


@given(st.binary(max_size=5000), st.lists(st.sampled_from(list(ENCODERS)), max_size=3))
def test_encodings_are_undone_in_reverse_order(data: bytes, names: list[str]) -> None:
    payload = data
    for name in names:
        payload = ENCODERS[name](payload)
    assert decoded(payload, tuple(names), LIMIT) == data


def test_deflate_without_header_and_several_gzip_members() -> None:
    assert decoded(raw_deflate(PAGE), ("deflate",), LIMIT) == PAGE
    assert decoded(gzip.compress(PAGE) + gzip.compress(PAGE), ("gzip",), LIMIT) == PAGE * 2
    assert decoded(gzip.compress(PAGE) + b"trailer", ("gzip",), LIMIT) == PAGE


@pytest.mark.parametrize("name", ENCODERS)
def test_payload_that_was_stored_decoded_is_taken_as_it_is(name: str) -> None:
    assert decoded(PAGE, (name,), LIMIT) == PAGE
    assert decoded(b"", (name,), LIMIT) == b""


@pytest.mark.parametrize("name", ENCODERS)
def test_payload_that_ends_early_is_broken(name: str) -> None:
    whole = ENCODERS[name](PAGE)
    for end in {len(whole) // 2, len(whole) - 6, len(whole) - (5 if name == "chunked" else 6)}:
        with pytest.raises(BrokenRecordError, match=f"cannot be decoded as {name}"):
            decoded(whole[:end], (name,), LIMIT)


def test_chunks_may_end_in_all_usual_ways() -> None:
    for end in (b"0\r\n\r\n", b"000;name=value\r\nTrailer: x\r\n\r\n", b"0\r\n\r\nleft over"):
        assert decoded(b"5\r\nhello\r\n" + end, ("chunked",), LIMIT) == b"hello"
    assert decoded(b"0\r\n\r\n", ("chunked",), LIMIT) == b""


def test_damaged_payload_is_broken() -> None:
    whole = bytearray(gzip.compress(PAGE))
    whole[-6] ^= 1
    with pytest.raises(BrokenRecordError, match="gzip"):
        decoded(bytes(whole), ("gzip",), LIMIT)
    with pytest.raises(BrokenRecordError, match="chunked"):
        decoded(b"5\r\nhello\r\nnonsense", ("chunked",), LIMIT)
    with pytest.raises(BrokenRecordError, match="br"):
        decoded(b"\xff\xfe\0\1" * 50, ("br",), LIMIT)


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
def test_bomb_is_refused_in_bounded_memory(name: str) -> None:
    payload = ENCODERS[name](bytes(100 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(BrokenRecordError, match="longer than max_document_bytes"):
            decoded(payload, (name,), LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()


def test_unknown_encoding_is_ignored_and_unsupported_one_is_broken() -> None:
    assert decoded(PAGE, ("utf-8", "none"), LIMIT) == PAGE
    with pytest.raises(BrokenRecordError, match="compress is not supported"):
        decoded(PAGE, ("compress",), LIMIT)
    with pytest.raises(BrokenRecordError, match="5 encodings"):
        decoded(PAGE, ("gzip",) * 5, LIMIT)
    with pytest.raises(BrokenRecordError, match="longer than"):
        decoded(PAGE, (), 10)
