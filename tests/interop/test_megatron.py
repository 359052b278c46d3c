"""Tests of writing and reading Megatron's indexed datasets, also with Megatron Core."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from datakit.cache.reader import Cache, open_cache
from datakit.errors import CorruptError, NotFoundError, UsageError
from datakit.interop import import_cache as import_cache_module
from datakit.interop import megatron
from datakit.interop.import_cache import import_cache
from datakit.interop.megatron import export_megatron, read_megatron
from datakit.validate.intact import require_intact
from tests.support.caches import make_cache, random_cache
from tests.support.partitions import words
from tests.support.tokens.external_caches import (
    documents,
    read_by_hand,
    write_by_hand,
)
from tests.support.tokens.real_readers import MEGATRON


@pytest.mark.parametrize(("dtype", "code"), [(np.uint16, 8), (np.uint32, 4)])
def test_export_matches_the_format(tmp_path: Path, dtype: type, code: int) -> None:
    directory, _ = random_cache(tmp_path, dtype, [5000, 0, 3000])
    cache = open_cache(str(directory))
    done = export_megatron(cache, str(tmp_path / "out"))
    expected = [document.tokens.tolist() for document in cache.documents()]
    found, borders, header = read_by_hand(tmp_path / "out")
    filled = [row for row in expected if row]
    assert found == filled
    assert borders == list(range(len(filled) + 1))
    assert header == {"version": 1, "code": code}
    assert (done.sequences, done.tokens, done.empty) == (len(filled), 8000, len(expected) - len(filled))
    assert done.empty > 0


def test_what_the_format_cannot_count_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = open_cache(str(make_cache(tmp_path / "made", {"web": [words(1, 1, 900)[0]]})))
    vocabulary = cache.contract.vocabulary_size
    monkeypatch.setattr(megatron, "MOST", vocabulary)
    with pytest.raises(UsageError, match=r"a document of \d+ tokens is too long for the Megatron format"):
        export_megatron(cache, str(tmp_path / "out"))
    monkeypatch.setattr(megatron, "MOST", vocabulary - 1)
    with pytest.raises(UsageError, match=f"cannot store ids above {vocabulary - 1}"):
        export_megatron(cache, str(tmp_path / "out"))


def test_loss_masks_are_not_dropped_unless_asked_for(tmp_path: Path) -> None:
    directory, tokens = random_cache(tmp_path, np.uint16, [500, 300], masks=True)
    cache = open_cache(str(directory))
    with pytest.raises(UsageError, match=r"cannot store the loss masks of web; .*--drop-loss-mask"):
        export_megatron(cache, str(tmp_path / "out"))
    assert not list(tmp_path.glob("out*"))
    assert export_megatron(cache, str(tmp_path / "out"), drop_loss_mask=True).tokens == len(tokens)


def test_one_source_is_exported_and_imported_back(tmp_path: Path) -> None:
    directory = make_cache(tmp_path / "made", {"novels": words(1, 50), "laws": words(2, 30)}, bits=1)
    cache = open_cache(str(directory))
    export_megatron(cache, str(tmp_path / "laws"), "laws")
    with pytest.raises(UsageError, match="no source 'law'; did you mean 'laws'"):
        export_megatron(cache, str(tmp_path / "law"), "law")
    again = megatron_import(tmp_path / "laws", tmp_path / "again", cache.tokenizer_url, add="eos")
    expected = [d.tokens.tolist() for row, d in enumerate(cache.documents()) if cache.source_of(row) == "laws"]
    assert len(expected) == 30
    assert [document.tokens.tolist() for document in again.documents()] == expected
    assert again.contract.tokenizer_sha256 == cache.contract.tokenizer_sha256
    export_megatron(again, str(tmp_path / "twice"))
    for ending in (".bin", ".idx"):
        assert (tmp_path / f"laws{ending}").read_bytes() == (tmp_path / f"twice{ending}").read_bytes()


def megatron_import(prefix: Path, target: Path, tokenizer: str, add: str = "none") -> Cache:
    import_cache(
        [read_megatron(str(prefix))], str(target), tokenizer,
        layout="megatron", source="old", copy=True, ends=(add, None, None),
    )  # fmt: skip
    return open_cache(str(target))


@pytest.mark.parametrize("shuffled", [False, True])
def test_documents_may_have_several_unordered_sequences(
    tmp_path: Path, tokenizer: str, shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_cache_module, "BATCH_TOKENS", 300)
    rows = [row.tolist() for row in documents(8, 60)]
    rows[5], rows[6] = [], []
    borders = [0, 3, 3, 10, 11, 60]
    write_by_hand(tmp_path / "old", rows, borders, shuffled)
    cache = megatron_import(tmp_path / "old", tmp_path / "new", tokenizer)
    expected = [sum(rows[a:b], []) for a, b in zip(borders, borders[1:], strict=False)]  # noqa: RUF007, RUF017
    assert [document.tokens.tolist() for document in cache.documents()] == expected
    require_intact(cache)


def test_broken_datasets_are_refused(tmp_path: Path, tokenizer: str) -> None:
    rows, old = [[1, 2, 3], [4, 5]], tmp_path / "old"
    write_by_hand(old, rows, [0, 1, 2])
    index, data = (old.with_suffix(ending).read_bytes() for ending in (".idx", ".bin"))
    old.with_suffix(".bin").write_bytes(data[:-1])
    with pytest.raises(CorruptError, match=r"old\.bin has 19 bytes, but its index requires 20"):
        read_megatron(str(old))
    for broken, error, message in (
        (b"NOT AN INDEX" + index[12:], UsageError, "is not the index of a Megatron dataset"),
        (index[:-1], CorruptError, r"bytes, but an index of 2 sequences and 2 documents has"),
        (index[:17] + bytes([6]) + index[18:], UsageError, "version 1 and token type 6"),
        (index[:-8] + struct.pack("<q", 1), CorruptError, "do not cover its 2 sequences"),
    ):
        old.with_suffix(".idx").write_bytes(broken)
        with pytest.raises(error, match=message):
            read_megatron(str(old))
    old.with_suffix(".idx").unlink()
    with pytest.raises(NotFoundError, match=r"old\.idx does not exist"):
        read_megatron(str(old))


def test_an_index_is_written_shard_by_shard(tmp_path: Path) -> None:
    """The bytes do not depend on how a cache is divided into shards."""
    texts = {"web": words(3, 200)}
    for bits in (0, 3):
        cache = open_cache(str(make_cache(tmp_path / f"made-{bits}", texts, bits=bits)))
        export_megatron(cache, str(tmp_path / f"out-{bits}"))
    for ending in (".bin", ".idx"):
        assert (tmp_path / f"out-0{ending}").read_bytes() == (tmp_path / f"out-3{ending}").read_bytes()


@pytest.mark.parametrize(("ending", "place"), [("bin", -1), ("idx", 36), ("idx", 60), ("idx", -8)])
def test_what_was_written_is_read_again(
    tmp_path: Path, ending: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong token, length, pointer or border is noticed before the files get their names."""
    cache = open_cache(str(make_cache(tmp_path / "made", {"web": ["a b", "c d e"]})))
    written = megatron._written

    def damaged(data: Path, index: Path, dtype: np.dtype) -> object:
        path = {"bin": data, "idx": index}[ending]
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)
        return written(data, index, dtype)

    monkeypatch.setattr(megatron, "_written", damaged)
    with pytest.raises((CorruptError, ValueError)):
        export_megatron(cache, str(tmp_path / "out"))
    assert not list(tmp_path.glob("out*"))


def test_megatron_core_reads_every_document(tmp_path: Path) -> None:
    directory, _ = random_cache(tmp_path, np.uint16, [5000, 0, 3000])
    cache = open_cache(str(directory))
    export_megatron(cache, str(tmp_path / "out"))
    rows = [document.tokens.tolist() for document in cache.documents() if len(document.tokens)]
    assert MEGATRON.read(tmp_path / "out") == [rows, list(range(len(rows) + 1))]
