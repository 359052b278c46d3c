"""The pool stays within its budget, reads each block once and survives failing reads."""

from __future__ import annotations

import numpy as np
import pytest

from datakit.loader import Loader
from tests.support.loader.mixtures import watched_mixture


def test_pool_stays_within_its_budget() -> None:
    source, mixture = watched_mixture()
    with Loader(mixture) as loader:
        most = 0
        for _ in loader.iterate(0, 128):
            most = max(most, loader._pool.used_bytes)
        assert loader.metrics.snapshot()["evictions"] > 50
    assert most <= mixture.memory_bytes * 1.2  # each block has document boundaries in addition to its tokens
    assert source.reads <= 2 * 64 + 16  # each block once an epoch, plus the read-ahead


def test_component_that_fits_is_read_once() -> None:
    source, mixture = watched_mixture(100)
    with Loader(mixture) as loader:
        for _ in loader.iterate(0, 256):
            pass
    assert source.reads == 64


@pytest.mark.parametrize("ahead", [0, 2])
def test_failing_read_is_raised_then_retried(ahead: int) -> None:
    source, mixture = watched_mixture()
    with Loader(mixture, batches_ahead=ahead) as loader:
        expected = loader[3].tokens
        source.broken = True
        with pytest.raises(OSError, match="on fire"):
            for _ in loader.iterate(20, 40):
                pass
        source.broken = False
        assert np.array_equal(loader[3].tokens, expected)
        assert [batch.step for batch in loader.iterate(20, 22)] == [20, 21]
