"""Tests of the totals in a cache's manifest."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from datakit.cache.reader import open_cache
from tests.support.caches import make_cache
from tests.support.partitions import words


def test_manifest_has_frequent_tokens_and_versions(tmp_path: Path) -> None:
    cache = open_cache(str(make_cache(tmp_path, {"web": words(1, 300)}, bits=2)))
    counts = np.bincount(cache.read(0, cache.tokens))
    frequent = cache.details.frequent
    assert len(frequent) == 32
    assert [count for _, count in frequent] == sorted((count for _, count in frequent), reverse=True)
    assert all(0 <= counts[token] - count <= 4 * 2 for token, count in frequent)
    assert frequent[0] == (int(counts.argmax()), int(counts.max()))
    assert cache.details.sources["web"].frequent == frequent
    assert cache.contract.encoder_version
    assert (cache.contract.fallback, cache.contract.long_texts) == ("", "parts")
