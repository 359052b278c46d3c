"""Decompression: all formats give the same records, and damage keeps what came before."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import brotli
import pyarrow as pa
import pytest
import xxhash
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from datakit.errors import EmptyStageError, UnreadableError
from datakit.normalize.formats import MAGIC
from datakit.normalize.readers import line_chunks, streams
from datakit.normalize.readers.streams import DamagedError, DamagedStreamError, decompressed
from tests.support.normalize.readers import RECORDS, lines, read, reasons, rows
from tests.support.normalize.sources import normalize

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}
TRUNCATED = {**COMPRESSORS, "br": brotli.compress}


def lz4(data: bytes) -> bytes:
    """Return a frame of one stored block, with a checksum of the content, as the program `lz4` writes it."""
    descriptor = b"\x64\x70"  # version 1, independent blocks, content checksum; blocks of up to 4 MiB
    header = b"\x04\x22\x4d\x18" + descriptor + bytes([xxhash.xxh32_intdigest(descriptor) >> 8 & 0xFF])
    block = (1 << 31 | len(data)).to_bytes(4, "little") + data
    return header + block + bytes(4) + xxhash.xxh32_intdigest(data).to_bytes(4, "little")


@pytest.mark.parametrize("pack", [lz4, lambda data: pa.compress(data, "lz4", asbytes=True)])
def test_lz4_is_read_to_its_last_frame(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    middle = len(lines(RECORDS[:77]))
    skippable = b"\x50\x2a\x4d\x18\x02\0\0\0ab"
    (tmp_path / "in.jsonl.lz4").write_bytes(skippable + pack(lines()[:middle]) + pack(lines()[middle:]))
    found, counts = read(tmp_path, "in.jsonl.lz4")
    assert rows(found) == RECORDS and not counts.quarantined
    result = normalize(tmp_path / "out", tmp_path / "in.jsonl.lz4")
    assert result["records_in"] == len(RECORDS), "also of a file whose state is checked when it has been read"


def test_nothing_of_a_damaged_lz4_file_is_used(tmp_path: Path) -> None:
    sound = lz4(lines())
    for number, data in enumerate(
        (sound[:-1], sound[: len(sound) // 2], sound + b"junk", sound.replace(b"r7", b"r8", 1))
    ):
        (tmp_path / f"{number}.jsonl.lz4").write_bytes(data)
        with pytest.raises(EmptyStageError, match="damaged or incomplete"):
            normalize(tmp_path / f"out{number}", tmp_path / f"{number}.jsonl.lz4", max_quarantined=9)


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_every_compression_gives_the_same_records(tmp_path: Path, suffix: str) -> None:
    pack = COMPRESSORS[suffix]
    middle = len(lines(RECORDS[:77]))
    (tmp_path / f"one.jsonl.{suffix}").write_bytes(pack(lines()))
    (tmp_path / f"two.jsonl.{suffix}").write_bytes(pack(lines()[:middle]) + pack(lines()[middle:]) + bytes(700))
    for name in ("one", "two"):
        found, counts = read(tmp_path, f"{name}.jsonl.{suffix}")
        assert rows(found) == RECORDS and not counts.quarantined


@pytest.mark.parametrize("suffix", TRUNCATED)
@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.999])
def test_truncated_stream_keeps_good_records(tmp_path: Path, suffix: str, share: float) -> None:
    records = [{"text": xxhash.xxh3_128_hexdigest(b"%d" % n) * 4} for n in range(2_000)]
    packed = TRUNCATED[suffix](lines(records))
    (tmp_path / f"in.jsonl.{suffix}").write_bytes(packed[: max(4, int(len(packed) * share))])
    with patch.object(line_chunks, "CHUNK_BYTES", 4096):
        found, counts = read(tmp_path, f"in.jsonl.{suffix}")
    good = rows(found)
    assert good == records[: len(good)]
    assert [place for place, _ in reasons(counts)] == [len(lines(records[: len(good)]))]
    if share > 0.5 and suffix in ("gz", "zst", "br"):
        assert len(good) > 0.3 * len(records)


def test_disk_error_is_not_damage() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 7:
                raise OSError(5, "Input/output error")
            return super().read(8)

    with pytest.raises(OSError, match="Input/output"):
        list(decompressed(Broken(gzip.compress(lines())), "in.jsonl.gz"))
    assert not issubclass(OSError, DamagedError)


def test_brotli_is_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl.br").write_bytes(brotli.compress(lines()))
    (tmp_path / "nothing.jsonl.br").write_bytes(brotli.compress(b""))
    found, counts = read(tmp_path, "in.jsonl.br")
    assert rows(found) == RECORDS and not counts.quarantined
    assert read(tmp_path, "nothing.jsonl.br")[0] == []
    assert normalize(tmp_path / "out", tmp_path / "in.jsonl.br")["records_in"] == len(RECORDS)


@pytest.mark.parametrize("tail", [b"\0", b"\n", b"junk", brotli.compress(b""), brotli.compress(lines())])
def test_nothing_is_used_of_brotli_data_that_is_followed_by_other_data(tmp_path: Path, tail: bytes) -> None:
    """Also if the data ends where the file is read on."""
    packed = brotli.compress(lines())
    (tmp_path / "in.jsonl.br").write_bytes(packed + tail)
    for input_bytes in (1 << 20, len(packed), 1):
        with patch.object(streams, "INPUT_BYTES", input_bytes), pytest.raises(EmptyStageError, match="other data"):
            normalize(tmp_path / "out", tmp_path / "in.jsonl.br", max_quarantined=9)


def test_brotli_data_that_cannot_be_decoded_is_left_out(tmp_path: Path) -> None:
    packed = brotli.compress(lines())
    for number, data in enumerate((lines(), gzip.compress(lines()), packed[:40] + bytes(99) + packed[40:])):
        (tmp_path / f"{number}.jsonl.br").write_bytes(data)
        with pytest.raises(EmptyStageError, match="damaged, is not Brotli data"):
            normalize(tmp_path / f"out{number}", tmp_path / f"{number}.jsonl.br", max_quarantined=9)
    (tmp_path / "empty.jsonl.br").write_bytes(b"")
    with pytest.raises(UnreadableError, match=r"is empty \(0 bytes\), so it is not a brotli file"):
        read(tmp_path, "empty.jsonl.br")


def test_brotli_bomb_is_decoded_in_small_pieces() -> None:
    bomb = brotli.compress(bytes(256 << 20), quality=3)
    assert len(bomb) < 4096
    sizes = [len(piece) for piece in decompressed(io.BytesIO(bomb), "in.jsonl.br")]
    assert sum(sizes) == 256 << 20 and max(sizes) <= 2 * streams.OUTPUT_BYTES


def test_brotli_file_may_begin_like_a_file_of_another_kind() -> None:
    """The length of this content is in the bytes with which gzip files begin."""
    content = (b"one two three " * 200)[:0x88C]
    packed = brotli.compress(content, lgwin=24)
    assert packed.startswith(MAGIC["gzip"] + b"\x08")
    assert b"".join(decompressed(io.BytesIO(packed), "in.txt.br")) == content


@given(st.binary(max_size=5_000), st.integers(0, 11), st.integers(1, 40), st.data())
def test_brotli_content_is_complete_or_an_error_is_raised(
    content: bytes, quality: int, piece: int, data: st.DataObject
) -> None:
    packed = brotli.compress(content, quality=quality)
    end = data.draw(st.integers(1, len(packed)))
    with patch.object(streams, "INPUT_BYTES", piece), patch.object(streams, "OUTPUT_BYTES", piece):
        assert b"".join(decompressed(io.BytesIO(packed), "in.br")) == content
        found = bytearray()
        try:
            for part in decompressed(io.BytesIO(packed[:end]), "in.br"):
                found += part
        except DamagedError as error:
            assert "the file ends inside" in str(error) and content.startswith(found) and end < len(packed)
        else:
            assert end == len(packed)
        with pytest.raises((DamagedError, DamagedStreamError), match="followed by other data"):
            list(decompressed(io.BytesIO(packed + b"\0"), "in.br"))
