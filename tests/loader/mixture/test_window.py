"""A window that is a whole epoch serves the same sequences whether or not its blocks are listed."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.loader import Packing
from datakit.loader.mixture import sequence_counts, window
from datakit.loader.mixture.stream import Stream
from tests.support.loader.mixtures import stream_of
from tests.support.loader.sources import served_tokens

LENGTHS = st.lists(st.integers(1, 60), min_size=4, max_size=60)


def served(stream: Stream, at: int, grown: int) -> list[int]:
    """Two epochs, with a change of length within the first one."""
    at = min(at, stream.end_of_epochs(1))
    first, _ = served_tokens(stream, 0, at)
    stream.change_length(at, grown)
    return [*first, *served_tokens(stream, at, stream.end_of_epochs(2))[0]]


@given(
    lengths=LENGTHS,
    packing=st.sampled_from([None, Packing(), Packing("drop")]),
    group=st.integers(1, 5),
    at=st.integers(0, 30),
    table=st.sampled_from([0, 1 << 20]),
)
@settings(max_examples=40, deadline=None)
def test_epoch_without_a_list_of_blocks(
    lengths: list[int], packing: Packing | None, group: int, at: int, table: int
) -> None:
    def made() -> Stream:
        return stream_of([*lengths, 5], 7, block_tokens=40, window=10**9, packing=packing)

    listed = served(made(), at, 20)
    with (
        patch.object(window, "LISTED_BLOCKS", 1),
        patch.object(window, "GROUP", group),
        patch.object(window, "MAX_TABLE", table),
        patch.object(sequence_counts, "BLOCKS_AT_ONCE", 3),
    ):
        assert served(made(), at, 20) == listed


@pytest.mark.parametrize("window_blocks", [1, 3, 100])
def test_starts_of_windows_are_counted_in_parts(window_blocks: int) -> None:
    counts = sequence_counts.PackedCounts(np.arange(11, dtype=np.int32) % 4)
    order = stream_of([64 * 11], 8)._epochs.permutation(11, "test")
    whole = counts.window_starts(order, window_blocks)
    with patch.object(sequence_counts, "BLOCKS_AT_ONCE", 2):
        assert np.array_equal(counts.window_starts(order, window_blocks), whole)
    sizes = counts.counts(order(np.arange(11)))
    assert whole.tolist() == [sizes[:end].sum() for end in [*range(0, 11, window_blocks), 11]]
