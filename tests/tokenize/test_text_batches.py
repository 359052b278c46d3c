"""Tests of reading a partition's documents in batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.tokenize import text_batches as text_batches_module
from datakit.tokenize.text_batches import text_batches
from tests.support.caches import clean
from tests.support.partitions import documents, words


def test_batches_cover_a_partition_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_batches_module, "BATCH_BYTES", 1000)
    texts = [*words(1, 100), "long " * 1000]
    source = clean(tmp_path, {"web": texts})
    found = list(text_batches(str(tmp_path / source.manifest.partitions[0].path)))
    expected = documents("web", texts)
    assert [text for batch in found for text in batch.strings()] == expected["text"].to_pylist()
    assert [name for batch in found for name in batch.ids.to_pylist()] == expected["id"].to_pylist()
    assert all(batch.text_bytes <= 1000 or len(batch.ids) == 1 for batch in found)
    for batch in found:
        cuts = zip(batch.offsets.tolist(), batch.offsets.tolist()[1:], strict=False)
        assert [batch.data[start:stop].tobytes().decode() for start, stop in cuts] == batch.strings()
