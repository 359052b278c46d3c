"""A cache is a sequence of documents, whose slices read only what is used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datakit.cache.reader import open_cache
from datakit.errors import DatakitError


def test_indices_slices_and_iteration_give_the_documents_of_their_rows(small: Path) -> None:
    cache = open_cache(str(small))
    ids = [cache.document(row).id for row in range(cache.documents_count)]
    assert len(cache) == len(ids) == 211
    assert [document.id for document in cache] == ids
    assert [document.id for document in cache[7:150]] == ids[7:150]
    assert [document.id for document in cache[::-50]] == ids[::-50]
    assert (cache[-1].id, cache[7:150][1:5][-1].id, list(cache[9:3])) == (ids[-1], ids[11], [])
    assert all(np.array_equal(one.tokens, cache.document(one.id).tokens) for one in cache[140:160])


def test_a_slice_reads_nothing_until_it_is_used(small: Path) -> None:
    cache = open_cache(str(small))
    part = cache[5:10]
    assert (cache.requests, len(part)) == (0, 5)
    assert repr(part) == f"Cache({str(small)!r})[5:10]"


def test_unknown_rows_and_ids_are_named(small: Path) -> None:
    cache = open_cache(str(small))
    with pytest.raises(KeyError) as caught:
        cache.document("no-such-id")
    assert isinstance(caught.value, DatakitError)
    assert str(caught.value).startswith(f"{small} has no document with the id 'no-such-id'; an id has 32 hex digits")
    with pytest.raises(IndexError, match=r"index 211 is out of range: .* has 211 elements"):
        cache[211]
    with pytest.raises(IndexError, match=r"rows \[5, 999\) are out of range"):
        next(cache.documents(5, 999))


def test_printing_a_cache_or_a_document_gives_one_line(small: Path) -> None:
    cache = open_cache(str(small))
    assert repr(cache).startswith(f"Cache({str(small)!r}: 211 documents, ")
    assert repr(cache).endswith("3 sources: laws, novels, one)")
    assert repr(cache[0]) == f"Document({cache[0].id}, {len(cache[0].tokens)} tokens)"


def test_arrow_batches_hold_the_documents(random_caches: dict[str, tuple[Path, np.ndarray]]) -> None:
    for directory, _ in random_caches.values():
        cache = open_cache(str(directory))
        table = cache.to_arrow(3, 37).read_all()
        assert table.column_names == ["id", "source", "tokens", "loss_mask"]
        assert table["id"].to_pylist() == [document.id for document in cache[3:37]]
        tokens = np.concatenate([document.tokens for document in cache[3:37]])
        first = cache.position_of(3)
        assert np.array_equal(table["tokens"].combine_chunks().flatten().to_numpy(), tokens)
        mask = table["loss_mask"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        assert np.array_equal(mask, cache.read_loss_mask(first, first + len(tokens)))
        assert set(table["source"].to_pylist()) == {"web"}


def test_arrow_batches_are_made_when_they_are_read(small: Path) -> None:
    cache = open_cache(str(small))
    reader = cache.to_arrow()
    assert cache.requests == 0
    assert reader.read_all().num_rows == 211
