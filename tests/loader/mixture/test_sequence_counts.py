"""Sequence counts of a component: stored ones must fit, and lengths must be possible."""

from __future__ import annotations

import numpy as np
import pytest

from datakit.errors import LoaderError
from datakit.loader import Packing
from datakit.loader.mixture import sequence_counts
from datakit.loader.mixture.stream import Stream
from datakit.loader.mixture.window import StreamSettings
from tests.support.loader.mixtures import stream_of
from tests.support.loader.sources import counting


def test_stored_counts_must_fit_the_source() -> None:
    source = counting([10] * 100)
    settings_ = StreamSettings("x", 0, 100, 2, True, Packing())
    with pytest.raises(LoaderError, match=r"packing-20-split has counts for 3 blocks, but the source has 10"):
        Stream(source, settings_, 20, {20: np.array([5, 5, 5])})
    assert Stream(source, settings_, 20, {20: np.full(10, 5)}).end_of_epochs(1) == 50


def test_too_many_blocks_are_not_counted_at_startup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_counts, "MAX_COUNTED_BLOCKS", 5)
    assert stream_of([64] * 5, 10, packing=Packing()).counts.packing_counters
    with pytest.raises(LoaderError, match=r"6 blocks are too many to pack .* run `datakit mixture pack` once"):
        stream_of([64] * 6, 10, packing=Packing())


def test_impossible_lengths_are_refused() -> None:
    with pytest.raises(LoaderError, match="raise block_tokens"):
        stream_of([1000], 100, block_tokens=64)
    with pytest.raises(LoaderError, match="no document fits"):
        stream_of([50, 50], 10, packing=Packing("drop"))
