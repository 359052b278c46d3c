"""Decompression: all formats give the same records, and damage keeps what came before."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
import xxhash
import zstandard

from datakit.normalize.readers import line_chunks
from datakit.normalize.readers.streams import DamagedError, decompressed
from tests.support.normalize.readers import RECORDS, lines, read, reasons, rows

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


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
