"""Blocks are read before they are needed, several at a time."""

from __future__ import annotations

import time

from datakit.loader import Loader
from tests.support.loader.mixtures import watched_mixture

SETTLED = 5  # polls in a row without a read


def wait_for_reads(loader: Loader) -> None:
    """Wait until no read is running or follows, as during a long training step."""
    quiet, deadline = 0, time.monotonic() + 60
    while quiet < SETTLED:
        assert time.monotonic() < deadline
        time.sleep(0.001)
        quiet = 0 if loader.snapshot(0)["reading"] else quiet + 1


def test_reads_overlap() -> None:
    source, mixture = watched_mixture()
    source.overlap = 4
    with Loader(mixture, in_flight=4) as loader:
        _ = loader[0]
    assert source.overlapped.is_set()


def test_reads_run_ahead_of_a_slow_model() -> None:
    _, mixture = watched_mixture()
    with Loader(mixture, in_flight=4) as loader:
        for _ in loader.iterate(0, 64):
            wait_for_reads(loader)
        found = loader.metrics.snapshot()
    assert found["reads"] <= 64 + 16
    assert found["hit_rate"] > 0.9
