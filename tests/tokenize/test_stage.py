"""Tests of the tokenize stage as a whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tokenizers

from datakit.cache.layout import array_form
from datakit.cache.reader import open_cache
from datakit.engine.task import Step
from datakit.errors import EmptyStageError, TokenizerError
from datakit.storage.manifest import Manifest
from datakit.tokenize import text_batches as text_batches_module
from datakit.validate.intact import require_intact
from tests.support.caches import SMALL_TEXTS, clean, make_cache, run, tokenize_step, trained
from tests.support.data import REAL_TOKENIZERS, need_data, texts_of
from tests.support.partitions import contents, identity, words


def test_counts_are_conserved(tmp_path: Path) -> None:
    texts = {"novels": words(1, 200), "laws": words(2, 100)}
    source = clean(tmp_path, texts, bits=2)
    manifest = run(tokenize_step(tmp_path / "cache", source, write_tokenizer(tmp_path, trained())))
    assert manifest.totals.rows == 300 == manifest.counters["tokenize/documents"]
    size = sum(entry.manifest.totals.text_bytes or 0 for entry in source[:-1])
    assert manifest.totals.text_bytes == size == manifest.counters["tokenize/text_bytes"]
    assert manifest.totals.tokens == manifest.counters["tokenize/tokens"]
    assert [part.path for part in manifest.partitions][:5] == [
        *(f"data/novels/shard-{index:05d}" for index in range(4)),
        "data/laws/shard-00000",
    ]
    sums = manifest.details["sources"]
    assert {name: sums[name]["documents"] for name in sums} == {"novels": 200, "laws": 100}
    assert sum(sums[name]["tokens"] for name in sums) == manifest.totals.tokens
    assert sum(manifest.details["lengths"].values()) == 300
    assert [(part.first_id, part.last_id) for part in manifest.partitions] == [
        (part.first_id, part.last_id) for entry in source[:-1] for part in entry.manifest.partitions
    ]


@pytest.mark.parametrize(("add", "before", "after"), [("none", 0, 0), ("bos", 1, 0), ("eos", 0, 1), ("both", 1, 1)])
def test_recipe_decides_tokens_around_documents(tmp_path: Path, add: str, before: int, after: int) -> None:
    texts = words(4, 20)
    cache = open_cache(str(make_cache(tmp_path, {"web": texts}, add=add, bos="<|endoftext|>")))
    reference = tokenizers.Tokenizer.from_str(trained().decode())
    by_id = {identity(text): text for text in texts}
    for document in cache.documents():
        inner = reference.encode(by_id[document.id]).ids
        assert document.tokens.tolist() == [0] * before + inner + [0] * after


def test_bytes_do_not_depend_on_batches_or_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, tokenizer = clean(tmp_path, {"web": words(1, 400)}, bits=3), write_tokenizer(tmp_path, trained())
    run(tokenize_step(tmp_path / "a", source, tokenizer))
    monkeypatch.setattr(text_batches_module, "BATCH_BYTES", 777)
    monkeypatch.setattr("datakit.engine.partition_grouping.SMALLEST", 1)
    run(tokenize_step(tmp_path / "b", source, tokenizer))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_cache_equals_that_of_the_documents_that_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files and counters are the same as if the documents that leave had never existed."""
    monkeypatch.setattr("datakit.storage.parquet.ROW_GROUP_ROWS", 7)
    texts = {"web": words(1, 300), "gone": words(2, 8), "laws": words(3, 60)}
    leaving = {"web": texts["web"][5:160:2], "gone": texts["gone"]}
    marks = {name: {identity(text): ["exact"] for text in group} for name, group in leaving.items()}
    staying = {name: [text for text in group if text not in leaving.get(name, ())] for name, group in texts.items()}
    tokenizer = write_tokenizer(tmp_path, trained())
    one = run(tokenize_step(tmp_path / "a", clean(tmp_path / "all", texts, 2, marks), tokenizer))
    other = run(tokenize_step(tmp_path / "b", clean(tmp_path / "rest", staying, 2), tokenizer))
    assert read_documents(tmp_path / "a") == read_documents(tmp_path / "b")
    files, wanted = contents(tmp_path / "a"), contents(tmp_path / "b")
    del files["manifest.json"], wanted["manifest.json"]
    assert files == wanted
    assert (one.partitions, one.totals, one.details) == (other.partitions, other.totals, other.details)
    assert one.counters == other.counters


def read_documents(directory: Path) -> list[tuple[str, list[int]]]:
    return [(document.id, document.tokens.tolist()) for document in open_cache(str(directory)).documents()]


def test_manifests_of_equal_steps_are_equal(tmp_path: Path) -> None:
    source, tokenizer = clean(tmp_path / "clean", SMALL_TEXTS, bits=1), tmp_path / "tokenizer.json"
    tokenizer.write_bytes(trained())
    manifests_of: list[Manifest] = [
        run(replace(tokenize_step(tmp_path / name, source, tokenizer), stage="tokenize")) for name in "ab"
    ]
    assert msgspec.to_builtins(manifests_of[0]) == msgspec.to_builtins(manifests_of[1])
    assert array_form(np.dtype(np.uint16)).dtype == manifests_of[0].details["array"]["dtype"]


def test_partition_without_documents_has_no_shard(tmp_path: Path) -> None:
    texts = [text for text in words(1, 40) if identity(text)[0] in "0123"]  # all in the first quarter
    cache = open_cache(str(make_cache(tmp_path, {"web": texts}, bits=2)))
    assert [shard.path for shard in cache.shards] == ["data/web/shard-00000"]
    assert cache.documents_count == len(texts)
    with pytest.raises(EmptyStageError, match="no document"):
        make_cache(tmp_path / "none", {"web": []})


def test_empty_documents_are_counted_and_readable(tmp_path: Path) -> None:
    """With no tokens added, an empty text is a row without tokens; a shard of only such rows has no array."""
    texts = ["", *words(1, 30)]
    cache = open_cache(str(make_cache(tmp_path, {"empty": [""], "web": texts}, add="none")))
    assert [shard.tokens > 0 for shard in cache.shards] == [False, True]
    assert cache.documents_count == 32 == len(list(cache.documents()))
    assert sum(len(document.tokens) == 0 for document in cache.documents()) == 2
    assert cache.details.lengths["1"] == 2
    assert require_intact(cache) > 0


def test_cache_holds_the_tokenizer_of_its_contract(tmp_path: Path) -> None:
    """The copy is checked, so a contract step whose file was replaced is noticed."""
    source, tokenizer = clean(tmp_path, {"web": words(1, 5)}), write_tokenizer(tmp_path, trained())
    made = tokenize_step(tmp_path / "cache", source, tokenizer)
    settled = made.inputs[-1]
    manifest = run(made)
    assert (tmp_path / "cache" / "tokenizer.json").read_bytes() == trained()
    assert manifest.details["contract"] == settled.manifest.details["contract"]
    moved = replace(settled, directory=str(tmp_path / "moved"))
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "tokenizer.json").write_bytes(trained(500))
    with pytest.raises(TokenizerError, match="moved was made with the tokenizer whose sha256 is"):
        run(replace(made, directory=str(tmp_path / "other"), inputs=(*made.inputs[:-1], moved)))


def test_libraries_that_no_longer_fulfill_the_contract_are_refused(tmp_path: Path) -> None:
    """A contract may have been made long before the cache, with other versions of the libraries."""
    made = tokenize_step(
        tmp_path / "cache", clean(tmp_path, {"web": words(1, 5)}), write_tokenizer(tmp_path, trained())
    )
    settled = made.inputs[-1]
    older = {**settled.manifest.details["contract"], "encoder_version": "0.0.1"}
    assert run_with(made, tmp_path / "b", older).details["contract"] == settled.manifest.details["contract"]
    older["golden"] = [{**entry, "ids": [0]} for entry in older["golden"]]
    with pytest.raises(TokenizerError, match=r"differently from version 0\.0\.1, with which .*contract-"):
        run_with(made, tmp_path / "c", older)


def run_with(made: Step, directory: Path, contract: dict[str, object]) -> Manifest:
    """Run a tokenize step with another contract."""
    settled = made.inputs[-1]
    altered = replace(settled, manifest=msgspec.structs.replace(settled.manifest, details={"contract": contract}))
    return run(replace(made, directory=str(directory), inputs=(*made.inputs[:-1], altered)))


def write_tokenizer(folder: Path, data: bytes) -> Path:
    (folder / "tokenizer.json").write_bytes(data)
    return folder / "tokenizer.json"


def test_cache_of_real_texts_has_the_references_tokens(tmp_path: Path) -> None:
    """Each document's tokens are the reference's ids of its text, then end-of-text."""
    folder = need_data()
    texts = (
        texts_of(folder / "text" / "nltk-inaugural.jsonl.gz")[:10] + texts_of(folder / "text" / "php-ja.parquet")[:200]
    )
    tokenizer = folder / "tokenizers" / REAL_TOKENIZERS["olmo-v1_5"]
    cache = open_cache(str(make_cache(tmp_path, {"web": texts}, tokenizer.read_bytes(), bits=2)))
    reference = tokenizers.Tokenizer.from_file(str(tokenizer))
    by_id = {identity(text): text for text in texts}
    seen = 0
    for document in cache.documents():
        expected = reference.encode(by_id[document.id], add_special_tokens=False).ids
        assert document.tokens.tolist() == [*expected, 50279]
        seen += 1
    assert seen == len(by_id) == cache.documents_count
