"""Metrics count what was served and read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datakit.loader import Component, Loader, Mixture, open_source
from tests.support.caches import random_cache
from tests.support.loader.mixtures import two_components
from tests.support.loader.sources import real_tokens


def test_metrics_count_served_batches() -> None:
    with Loader(two_components()) as loader:
        batches = list(loader.iterate(0, 50))
        found = loader.snapshot(50)
    assert found["batches"] == 50
    assert found["tokens"] == sum(len(real_tokens(batch)) for batch in batches)
    assert found["padding"] == sum(batch.padding for batch in batches)
    assert (found["rows/a"], found["rows/b"]) == (300, 100)
    assert found["epochs/a"] == pytest.approx(300 / 140)
    assert found["epochs/b"] == pytest.approx(100 / 110)
    assert found["bytes_read"] == 1400 * 4 + 1100 * 4


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_tensorstore_counts_only_what_this_loader_read_from_compressed_shards(dtype: type, tmp_path: Path) -> None:
    """Writing a compressed cache counts too, but before the loader exists. A raw shard is read without TensorStore."""
    place = random_cache(tmp_path, dtype, [30_000, 20_000])[0]
    with Loader(Mixture({"x": Component(open_source(str(place)))}, {"x": 1.0}, sequence_length=64)) as loader:
        before = loader.snapshot(0)
        _ = loader[0]
        found = loader.snapshot(1)
    names = [f"tensorstore/cache/{name}" for name in ("hit_count", "miss_count", "evict_count", "chunk_cache/reads")]
    assert [before[name] for name in names] == [0, 0, 0, 0]
    read = found.get("tensorstore/kvstore/file/bytes_read", 0)
    if dtype is np.uint16:
        assert (read, [found[name] for name in names]) == (0, [0, 0, 0, 0])
    else:
        assert 0 < read <= sum(file.stat().st_size for file in place.rglob("c/0"))
        assert found["tensorstore/cache/miss_count"] >= found["tensorstore/cache/chunk_cache/reads"] > 0
    assert found["bytes_read"] > 0
