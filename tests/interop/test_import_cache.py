"""Tests of importing tokens of other programs, by copy and by reference."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from datakit.cache.reader import open_cache
from datakit.errors import CorruptError, TokenizerError, UsageError
from datakit.interop import import_cache as import_cache_module
from datakit.interop.levanter import read_levanter
from datakit.validate.token_cache import require_intact
from tests.support.tokens.external_caches import (
    assert_documents,
    consolidated,
    documents,
    imported,
)


def test_copies_stand_alone_and_references_can_be_moved(tmp_path: Path, tokenizer: str) -> None:
    rows = documents(3, 50)
    original = consolidated(tmp_path / "here" / "old", rows)
    imported(original, tmp_path / "here" / "left", tokenizer, copy=False)
    imported(original, tmp_path / "here" / "copied", tokenizer, copy=True)
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert_documents(open_cache(str(tmp_path / "there" / "left")), rows)
    shutil.rmtree(tmp_path / "there" / "old")
    assert_documents(open_cache(str(tmp_path / "there" / "copied")), rows)
    with pytest.raises(CorruptError, match=r"old/input_ids/data/c/0 is missing"):
        open_cache(str(tmp_path / "there" / "left")).read(0, 10)


def test_altered_original_is_found(tmp_path: Path, tokenizer: str) -> None:
    original = consolidated(tmp_path / "old", documents(3, 50))
    cache = imported(original, tmp_path / "new", tokenizer, copy=False)
    data = original / "input_ids/data/c/0"
    whole = data.read_bytes()
    data.write_bytes(whole[:9] + bytes([whole[9] ^ 1]) + whole[10:])
    with pytest.raises(CorruptError, match=r"data/c/0 has the same size, but xxh3 \w+; the manifest says \w+"):
        require_intact(cache)
    data.write_bytes(whole[:-1])
    with pytest.raises(CorruptError, match=rf"data/c/0 has {len(whole) - 1} bytes, but the manifest says {len(whole)}"):
        open_cache(str(tmp_path / "new")).read(0, 10)


def test_name_that_is_no_folder_name_is_refused(tmp_path: Path, tokenizer: str) -> None:
    original = consolidated(tmp_path / "old", documents(3, 50))
    with pytest.raises(UsageError, match=r"source name '\.\./web': use at most 100 letters, digits, .*--name"):
        import_cache_module.import_cache(
            read_levanter(str(original)),
            str(tmp_path / "new"),
            tokenizer,
            layout="levanter",
            source="../web",
            copy=True,
        )


def test_names_of_files_are_durable_before_the_manifest_is(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    sync, link = os.fsync, os.link

    def record_sync(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def check_link(source: str, target: str) -> None:
        if str(target).endswith("manifest.json"):
            assert {str(new), *(str(path) for path in new.rglob("*") if path.is_dir())} <= synced
            synced.clear()
        link(source, target)

    original, new = consolidated(tmp_path / "old", documents(3, 50)), tmp_path / "new"
    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "link", check_link)
    imported(original, new, tokenizer, copy=True)
    assert synced == {str(new), str(tmp_path)}


def test_copied_shards_end_at_documents(tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_cache_module, "SHARD_TOKENS", 2000)
    monkeypatch.setattr(import_cache_module, "BATCH_TOKENS", 500)
    rows = documents(4, 100)
    rows[10] = np.full(5000, 7, np.int32)  # longer than a shard may be
    cache = imported(consolidated(tmp_path / "old", rows), tmp_path / "new", tokenizer, copy=True)
    assert_documents(cache, rows)
    assert all(shard.tokens <= 2000 or shard.rows == 1 for shard in cache.shards)
    assert len(cache.shards) >= sum(map(len, rows)) // 2000
    counts = np.bincount(np.concatenate(rows))
    assert cache.details.frequent[0][0] == 7
    assert all(0 < count <= counts[token] for token, count in cache.details.frequent)


@pytest.mark.parametrize("copy", [False, True])
def test_promised_end_tokens_are_checked(tmp_path: Path, tokenizer: str, copy: bool) -> None:
    good = consolidated(tmp_path / "good", documents(5, 30, end=0))
    cache = imported(good, tmp_path / "new", tokenizer, copy, add="eos")
    assert cache.contract.eos is not None
    assert cache.contract.eos.id == 0
    bad = consolidated(tmp_path / "bad", documents(5, 30, end=None))
    with pytest.raises(CorruptError, match=r"a document does not end with '<\|endoftext\|>'"):
        imported(bad, tmp_path / "refused", tokenizer, copy, add="eos")
    assert not (tmp_path / "refused" / "manifest.json").exists()


def test_ids_beyond_the_vocabulary_are_refused(tmp_path: Path, tokenizer: str) -> None:
    size = tokenizers.Tokenizer.from_file(tokenizer).get_vocab_size()
    original = consolidated(tmp_path / "old", [np.array([1, size + 70_000], np.int32)])
    with pytest.raises(UsageError, match=rf"holds the id {size + 70_000}, but the tokenizer has {size} ids"):
        imported(original, tmp_path / "copied", tokenizer, copy=True)
    left = imported(original, tmp_path / "left", tokenizer, copy=False)
    with pytest.raises(TokenizerError, match=rf"holds the id {size + 70_000}.*has {size} ids"):
        left.read(0, 2)
