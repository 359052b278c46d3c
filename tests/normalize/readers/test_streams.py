"""Decompression: all formats give the same records, and damage keeps what came before."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
import xxhash
import zstandard

from datakit.errors import EmptyStageError
from datakit.normalize.readers import line_chunks
from datakit.normalize.readers.streams import DamagedError, decompressed
from tests.support.normalize.readers import RECORDS, lines, read, reasons, rows
from tests.support.normalize.sources import normalize

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


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


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.999])
def test_truncated_stream_keeps_good_records(tmp_path: Path, suffix: str, share: float) -> None:
    records = [{"text": xxhash.xxh3_128_hexdigest(b"%d" % n) * 4} for n in range(2_000)]
    packed = COMPRESSORS[suffix](lines(records))
    (tmp_path / f"in.jsonl.{suffix}").write_bytes(packed[: max(4, int(len(packed) * share))])
    with patch.object(line_chunks, "CHUNK_BYTES", 4096):
        found, counts = read(tmp_path, f"in.jsonl.{suffix}")
    good = rows(found)
    assert good == records[: len(good)]
    assert [place for place, _ in reasons(counts)] == [len(lines(records[: len(good)]))]
    if share > 0.5 and suffix in ("gz", "zst"):
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
