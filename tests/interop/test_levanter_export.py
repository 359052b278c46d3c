"""Tests of exports to Levanter: read back by datakit's import, by TensorStore, and by Levanter itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorstore

from datakit.cache.reader import open_cache
from datakit.errors import CorruptError, DivergentOutputError, UsageError
from datakit.interop import levanter_export, zarr_pieces
from datakit.interop.levanter_export import export_levanter
from datakit.interop.zarr_pieces import ArrayWriter, metadata
from tests.support.caches import make_cache, random_cache
from tests.support.partitions import contents, words
from tests.support.tokens.external_caches import assert_documents, imported
from tests.support.tokens.real_readers import LEVANTER


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make files of four small chunks, two of which are encoded together."""
    for name, value in {"CHUNK": 1000, "CHUNKS": 4, "AT_ONCE": 2}.items():
        monkeypatch.setattr(zarr_pieces, name, value)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("copy", [False, True])
def test_export_is_imported_back(tmp_path: Path, copy: bool) -> None:
    cache = open_cache(str(make_cache(tmp_path / "made", {"novels": words(1, 150), "laws": words(2, 60)}, bits=1)))
    done = export_levanter(cache, str(tmp_path / "out"))
    rows = [document.tokens for document in cache.documents()]
    assert (done.sequences, done.tokens) == (len(rows), cache.tokens)
    assert len(list((tmp_path / "out/input_ids/data/c").iterdir())) > 1
    tokenizer = cache.tokenizer_url
    assert_documents(imported(tmp_path / "out", tmp_path / "new", tokenizer, copy, "eos"), rows)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2000, 4000, 4001, 9500])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_pieces_are_what_tensorstore_writes(tmp_path: Path, count: int, dtype: str) -> None:
    values = np.random.default_rng(count).integers(1, 10**6, count).astype(dtype)
    with ArrayWriter(str(tmp_path / "ours"), dtype) as writer:
        for start in range(0, count, 700):
            writer.add(values[start : start + 700])
    store = {"driver": "file", "path": f"{tmp_path}/theirs/"}
    array = tensorstore.open({"driver": "zarr3", "kvstore": store, "metadata": metadata(dtype)}, create=True).result()
    if count:
        array[:count].write(values).result()
    assert json.loads((tmp_path / "ours/zarr.json").read_text()) == json.loads(
        (tmp_path / "theirs/zarr.json").read_text()
    )
    assert contents(tmp_path / "ours").keys() == contents(tmp_path / "theirs").keys()
    opened = tensorstore.open(
        {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/ours/"}}, open=True
    ).result()
    assert (opened[: count + 500].read().result()[:count] == values).all()
    assert not opened[count : count + 500].read().result().any(), "what follows is zero"


def test_settings_are_those_that_levanter_requires() -> None:
    """The library passes these options when it opens an array, and refuses an array with others."""
    found = metadata("int32")
    assert found["shape"] == [1 << 54]
    assert found["chunk_grid"]["configuration"]["chunk_shape"] == [256 * 1024 * 512]
    (sharding,) = found["codecs"]
    assert sharding["configuration"]["chunk_shape"] == [256 * 1024]
    assert sharding["configuration"]["codecs"][-1] == {"name": "blosc", "configuration": {"clevel": 5}}


def test_ledger_comes_last_and_another_export_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = open_cache(str(make_cache(tmp_path / "made", {"novels": words(1, 50), "laws": words(2, 30)})))
    out = tmp_path / "out"
    export_levanter(cache, str(out))
    before = contents(out)
    assert json.loads(before["shard_ledger.json"])["total_num_rows"] == 80
    (out / "shard_ledger.json").unlink()  # as after a crash
    export_levanter(cache, str(out))
    assert contents(out) == before
    with pytest.raises(DivergentOutputError):
        export_levanter(cache, str(out), "laws")
    (out / "input_ids/data/c/9").write_bytes(b"rest of a larger export")
    with pytest.raises(UsageError, match="holds other files, such as input_ids/data/c/9"):
        export_levanter(cache, str(out))


def test_what_was_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = open_cache(str(make_cache(tmp_path / "made", {"web": words(1, 50)})))
    read = levanter_export._read

    def damaged(array: object, start: int, stop: int) -> np.ndarray:
        found = read(array, start, stop).copy()  # pyright: ignore[reportArgumentType]
        found[-1] += 1 if len(found) > 60 else 0
        return found

    monkeypatch.setattr(levanter_export, "_read", damaged)
    with pytest.raises(CorruptError, match="that differ from the"):
        export_levanter(cache, str(tmp_path / "out"))
    assert not (tmp_path / "out/shard_ledger.json").exists()


def test_what_the_format_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, _ = random_cache(tmp_path, np.uint16, [500, 300], masks=True)
    cache = open_cache(str(directory))
    with pytest.raises(UsageError, match=r"the Levanter format cannot store the loss masks of web"):
        export_levanter(cache, str(tmp_path / "out"))
    assert export_levanter(cache, str(tmp_path / "out"), drop_loss_mask=True).tokens == 800
    monkeypatch.setattr(levanter_export, "MOST", 10)
    with pytest.raises(UsageError, match="cannot store ids above 10"):
        export_levanter(cache, str(tmp_path / "more"), drop_loss_mask=True)


def test_levanter_reads_every_document(tmp_path: Path) -> None:
    directory, _ = random_cache(tmp_path, np.uint32, [70_000, 1, 0, 300_000])
    cache = open_cache(str(directory))
    export_levanter(cache, str(tmp_path / "out"))
    assert LEVANTER.read(tmp_path / "out") == [document.tokens.tolist() for document in cache.documents()]
