"""Tests of finding documents by id and by position."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tokenizers

from datakit.cache.reader import open_cache
from tests.support.caches import SMALL_TEXTS, random_cache
from tests.support.partitions import identity


def test_documents_are_found_by_id_and_position(small: Path) -> None:
    cache = open_cache(str(small))
    tokenizer = tokenizers.Tokenizer.from_file(str(small / "tokenizer.json"))
    for source, group in SMALL_TEXTS.items():
        for text in group:
            row = cache.find(identity(text))
            assert row is not None
            document = cache.document(row)
            assert document.tokens.tolist() == [*tokenizer.encode(text).ids, 0]
            assert cache.source_of(row) == source
            start = cache.position_of(row)
            assert cache.row_at(start) == cache.row_at(start + len(document.tokens) - 1) == row
    for absent in ("0" * 32, "f" * 32, identity("something else"), "not an id"):
        assert cache.find(absent) is None


def test_finding_an_id_reads_one_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard's list of documents has many row groups."""
    monkeypatch.setattr("datakit.storage.parquet.ROW_GROUP_ROWS", 2)
    directory, _ = random_cache(tmp_path, np.uint16)
    cache = open_cache(str(directory))
    for row, document in enumerate(cache.documents()):
        fresh = open_cache(str(directory))
        assert fresh.find(document.id) == row
        assert len(fresh._documents._groups) == 1
        assert cache.document(row).id == document.id


def test_empty_documents_are_found_but_have_no_position(tmp_path: Path) -> None:
    directory, tokens = random_cache(tmp_path, np.uint16, [5, 0, 3])
    cache = open_cache(str(directory))
    owners = [cache.row_at(position) for position in range(len(tokens))]
    every = list(cache.documents())
    assert owners == [row for row, document in enumerate(every) for _ in document.tokens]
    for row, document in enumerate(every):
        assert cache.find(document.id) == row
        assert cache.document(row).tokens.tolist() == document.tokens.tolist()
    with pytest.raises(IndexError, match="token 8 is out of range"):
        cache.row_at(8)
