"""Metrics count what was served and read."""

from __future__ import annotations

import pytest

from datakit.loader import Loader
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
