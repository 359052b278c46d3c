"""Tests of exports in the MDS format: read by hand from its description, and by MosaicML Streaming."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.cache.reader import Cache, open_cache
from datakit.errors import CorruptError, DivergentOutputError, UsageError
from datakit.interop import mds
from datakit.interop.mds import export_mds
from datakit.storage import urls
from tests.support.caches import make_cache, random_cache
from tests.support.partitions import words
from tests.support.tokens.real_readers import STREAMING


def read_by_hand(directory: Path) -> list[dict[str, Any]]:
    """Read all samples, one value at a time, from the description of the format."""
    index = json.loads((directory / "index.json").read_text())
    assert index["version"] == 2
    return [sample for shard in index["shards"] for sample in shard_by_hand(directory, shard)]


def shard_by_hand(directory: Path, shard: dict[str, Any]) -> list[dict[str, Any]]:
    data = (directory / shard["raw_data"]["basename"]).read_bytes()
    assert len(data) == shard["raw_data"]["bytes"]
    (count,) = struct.unpack_from("<I", data)
    assert count == shard["samples"]
    positions = struct.unpack_from(f"<{count + 1}I", data, 4)
    assert positions[-1] == len(data)
    header = json.loads(data[4 * (count + 2) : positions[0]])
    assert header == {name: shard[name] for name in header}
    return [sample_by_hand(data[begin:end], shard) for begin, end in pairwise(positions)]


def sample_by_hand(data: bytes, shard: dict[str, Any]) -> dict[str, Any]:
    names, encodings = shard["column_names"], shard["column_encodings"]
    sizes, place, sample = struct.unpack_from(f"<{len(names)}I", data), 4 * len(names), dict[str, Any]()
    for name, encoding, size in zip(names, encodings, sizes, strict=True):
        value, place = data[place : place + size], place + size
        if encoding == "str":
            sample[name] = value.decode()
            continue
        code = value[0] & 3
        assert value[0] >> 2 == 1, "an array with one axis"
        (length,) = struct.unpack_from("<" + "BHI"[code], value, 1)
        kind = {"uint8": "B", "uint16": "H", "uint32": "I"}[encoding.partition(":")[2]]
        body = value[1 + (1 << code) :]
        sample[name] = list(struct.unpack(f"<{length}{kind}", body))
    assert place == len(data)
    return sample


def rows_of(cache: Cache) -> list[dict[str, Any]]:
    """The documents of a cache that have tokens, one at a time."""
    rows = list[dict[str, Any]]()
    for row, document in enumerate(cache.documents()):
        start = cache.position_of(row)
        found = {"id": document.id, "source": cache.source_of(row), "tokens": document.tokens.tolist()}
        if cache.has_loss_mask:
            found["loss_mask"] = cache.read_loss_mask(start, start + len(document.tokens)).astype(int).tolist()
        rows += [found] if found["tokens"] else []
    return rows


@pytest.mark.parametrize(("dtype", "masks"), [(np.uint16, False), (np.uint32, False), (np.uint16, True)])
def test_every_document_is_found_by_hand(
    tmp_path: Path, dtype: type, masks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mds, "SHARD_BYTES", 40_000)
    directory, _ = random_cache(tmp_path, dtype, [70_000, 1, 0, 131_072, 900], masks)
    cache = open_cache(str(directory))
    done = export_mds(cache, str(tmp_path / "out"))
    expected = rows_of(cache)
    assert read_by_hand(tmp_path / "out") == expected
    assert (done.sequences, done.tokens, done.empty) == (len(expected), cache.tokens, len(cache) - len(expected))
    assert done.empty > 0 and len(list((tmp_path / "out").glob("*.mds"))) > 3


def test_shards_are_filled_up_to_their_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mds, "SHARD_BYTES", 4_000)
    cache = open_cache(str(make_cache(tmp_path / "made", {"web": words(1, 120)}, bits=2)))
    export_mds(cache, str(tmp_path / "out"))
    shards = json.loads((tmp_path / "out" / "index.json").read_text())["shards"]
    sizes = [shard["raw_data"]["bytes"] for shard in shards]
    assert len(sizes) > 3 and max(sizes) <= 4_000 and min(sizes[:-1]) > 3_000


@settings(max_examples=60)
@given(st.lists(st.integers(1, 1 << 17) | st.sampled_from([255, 256, 65_535, 65_536]), max_size=20))
def test_arrays_of_any_length_have_their_shape(lengths: list[int]) -> None:
    found = bytes(mds._shapes(np.array(lengths, np.int64)).data)
    for length in lengths:
        code = 0 if length < 256 else 1 if length < 65_536 else 2
        assert found[0] == 4 | code
        assert int.from_bytes(found[1 : 1 + (1 << code)], "little") == length
        found = found[1 + (1 << code) :]
    assert found == b""


@settings(max_examples=60)
@given(st.lists(st.tuples(*[st.binary(max_size=5)] * 3), max_size=9))
def test_parts_are_joined_row_by_row(rows: list[tuple[bytes, bytes, bytes]]) -> None:
    parts = [
        mds.Samples(np.frombuffer(b"".join(part), np.uint8), np.array([len(one) for one in part], np.int64))
        for part in (zip(*rows, strict=True) if rows else [(), (), ()])
    ]
    joined = mds._interleaved(parts)
    assert bytes(joined.data) == b"".join(b"".join(row) for row in rows)
    assert joined.sizes.tolist() == [sum(map(len, row)) for row in rows]


def test_one_source_is_exported(tmp_path: Path) -> None:
    cache = open_cache(str(make_cache(tmp_path / "made", {"novels": words(1, 50), "laws": words(2, 30)}, bits=1)))
    export_mds(cache, str(tmp_path / "out"), "laws")
    assert {row["source"] for row in read_by_hand(tmp_path / "out")} == {"laws"}
    with pytest.raises(UsageError, match="no source 'law'; did you mean 'laws'"):
        export_mds(cache, str(tmp_path / "law"), "law")


def test_exporting_again_gives_the_same_bytes_and_other_files_are_refused(tmp_path: Path) -> None:
    cache = open_cache(str(make_cache(tmp_path / "made", {"web": words(1, 50), "laws": words(2, 9)})))
    out = tmp_path / "out"
    export_mds(cache, str(out))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (out / "index.json").unlink()  # as after a crash
    export_mds(cache, str(out))
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    with pytest.raises(DivergentOutputError):
        export_mds(cache, str(out), "laws")
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds other files, such as notes\.txt"):
        export_mds(cache, str(out))


def test_what_was_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = open_cache(str(make_cache(tmp_path / "made", {"web": words(1, 50)})))
    read = urls.read_bytes

    def damaged(url: str) -> bytes:
        data = bytearray(read(url))
        if url.endswith(".mds"):
            data[-1] ^= 1
        return bytes(data)

    monkeypatch.setattr(urls, "read_bytes", damaged)
    with pytest.raises(CorruptError, match=r"50 documents with .* that differ from the 50"):
        export_mds(cache, str(tmp_path / "out"))
    assert not (tmp_path / "out" / "index.json").exists()


def test_a_document_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = open_cache(str(make_cache(tmp_path / "made", {"web": words(1, 50)})))
    monkeypatch.setattr(mds, "MOST_BYTES", 1_000)
    with pytest.raises(UsageError, match="too long for the MDS format"):
        export_mds(cache, str(tmp_path / "out"))


@pytest.mark.parametrize("masks", [False, True])
def test_mosaicml_streaming_reads_every_document(tmp_path: Path, masks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mds, "SHARD_BYTES", 100_000)
    directory, _ = random_cache(tmp_path, np.uint16, [70_000, 1, 0, 131_072], masks)
    cache = open_cache(str(directory))
    export_mds(cache, str(tmp_path / "out"))
    assert STREAMING.read(tmp_path / "out") == rows_of(cache)
