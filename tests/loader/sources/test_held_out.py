"""Held-out documents are about as many as requested, spread over the source."""

from __future__ import annotations

import numpy as np
import pytest

from datakit.errors import LoaderError
from datakit.loader import Component, training_source, validation_source
from datakit.loader.sources.held_out import held_out, total
from tests.support.loader.sources import counting, random_lengths


def test_held_out_documents_are_spread_over_the_source() -> None:
    source = counting(random_lengths(0, 5000, 400))
    ranges = held_out(source, 50_000, "validation", "x")
    assert abs(total(ranges) - 50_000) <= 5000
    assert len(ranges) == 64
    middles = np.array([(start + stop) / 2 for start, stop in ranges]) / source.tokens
    assert np.array_equal(np.floor(middles * 64), np.arange(64))


def test_impossible_amounts_name_the_component() -> None:
    with pytest.raises(LoaderError, match="'web': validation would take 100 of its 100"):
        training_source(Component(counting([50, 50]), validation_tokens=100), "web")
    with pytest.raises(LoaderError, match=r"'web': .*would take all of its tokens; they are in a single document"):
        training_source(Component(counting([100]), validation_tokens=10), "web")
    with pytest.raises(LoaderError, match="'web' has no held-out documents"):
        validation_source(Component(counting([100])), "web")
