"""One component: every token once an epoch, a new order each epoch, nothing lost at a change of length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.loader import Packing
from datakit.loader.mixture.stream import Stream
from tests.support.loader.mixtures import stream_of
from tests.support.loader.sources import random_lengths, served_tokens

LENGTHS = st.lists(st.integers(0, 90), min_size=1, max_size=60).filter(lambda lengths: sum(lengths) > 0)
CHANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), max_size=4)


@given(
    lengths=LENGTHS,
    settings_=st.fixed_dictionaries(
        {
            "block_tokens": st.integers(20, 130),
            "window": st.integers(1, 6),
            "packing": st.sampled_from([None, Packing(), Packing(max_documents=2)]),
            "shuffled": st.booleans(),
            "seed": st.integers(0, 5),
        }
    ),
    changes=CHANGES,
    length=st.integers(1, 20),
)
@settings(max_examples=40, deadline=None)
def test_each_epoch_has_each_token_once(
    lengths: list[int], settings_: dict[str, Any], changes: list[tuple[int, int]], length: int
) -> None:
    stream = stream_of(lengths, length, **settings_)
    at = 0
    for more, new_length in changes:
        at += more
        stream.change_length(at, new_length)
    first = 0
    for epoch in (1, 2, 3):
        last = stream.end_of_epochs(epoch)
        positions, _ = served_tokens(stream, first, last)
        assert np.array_equal(np.sort(positions), np.arange(stream.source.tokens))
        assert stream.epochs_at(last) == pytest.approx(epoch)
        first = last


def test_padding_is_at_most_one_sequence_a_block() -> None:
    stream = stream_of([640], 16, block_tokens=64)
    assert served_tokens(stream, 0, stream.end_of_epochs(1))[1] == 0
    stream = stream_of([640], 12, block_tokens=64)
    assert served_tokens(stream, 0, stream.end_of_epochs(1))[1] == 10 * (6 * 12 - 64)


def test_length_change_joins_unread_sequences_in_order() -> None:
    """Blocks of 8, windows of two, sequences of 2; after three sequences of the first window come sequences of 5."""
    stream = stream_of([5, 27], 2, block_tokens=8, window=2)
    before, _ = served_tokens(stream, 0, 3)
    window = stream.window_at(0)
    unread = np.sort(np.setdiff1d(np.concatenate([np.arange(8) + 8 * unit.number for unit in window.units]), before))
    stream.change_length(3, 5)
    joined = stream.stretches[-1].joined
    assert joined is not None
    pieces = [unit.take(np.array([s])) for unit in joined.units for s in range(unit.sequences)]
    rows = [np.concatenate([np.arange(a, a + n) for a, n in zip(p.starts, p.lengths, strict=True)]) for p in pieces]
    assert [len(row) for row in rows] == [5, 5]
    assert np.array_equal(np.concatenate(rows), unread)
    served, padding = served_tokens(stream, 3, 5)
    assert (sorted(served), padding) == (unread.tolist(), 0)
    rest, padding = served_tokens(stream, 5, stream.end_of_epochs(1))
    assert np.array_equal(np.sort(np.concatenate([before, unread, rest])), np.arange(32))
    assert padding == 2 * (10 - 8)  # the two blocks of the second window, cut to the new length


def test_only_the_last_joined_sequence_is_padded() -> None:
    stream = stream_of([6400], 16, block_tokens=640, window=5)
    stream.change_length(77, 100)
    joined = stream.stretches[-1].joined
    assert joined is not None
    filled = [int(unit.take(np.array([s])).lengths.sum()) for unit in joined.units for s in range(unit.sequences)]
    assert filled[:-1] == [100] * (len(filled) - 1)
    assert sum(filled) == (200 - 77) * 16


def test_repeated_changes_of_length_lose_nothing() -> None:
    stream = stream_of(random_lengths(1, 200, 30), 4, block_tokens=256, window=4, packing=Packing())
    for at, length in ((11, 16), (13, 64), (13, 128), (14, 3)):
        stream.change_length(at, length)
    positions, _ = served_tokens(stream, 0, stream.end_of_epochs(1))
    assert np.array_equal(np.sort(positions), np.arange(stream.source.tokens))


def test_cut_documents_are_whole_after_growth() -> None:
    """Documents that were too long for the old length and not yet served are whole after the change."""
    stream = stream_of([40, 40, 40], 8, block_tokens=120, window=1, packing=Packing(), shuffled=False)
    stream.change_length(1, 40)
    joined = stream.stretches[-1].joined
    assert joined is not None
    pieces = sorted(zip(joined.units[0].starts.tolist(), joined.units[0].lengths.tolist(), strict=True))
    assert [(start, size) for start, size in pieces if start >= 40] == [(40, 40), (80, 40)]


def test_length_change_keeps_the_block_order() -> None:
    """Windows not yet started keep the order they would have had."""
    short, grown = stream_of([6400], 8, window=3), stream_of([6400], 8, window=3)
    grown.change_length(5, 32)

    def windows(stream: Stream) -> list[list[int]]:
        found, at, end = [], 0, stream.end_of_epochs(1)
        while at < end:
            window = stream.window_at(at)
            if window.units[0].joined < 0:
                found.append([unit.number for unit in window.units])
            at = min([window.first + window.count, *(part.first for part in stream.stretches if part.first > at)])
        return found

    assert windows(grown)[1:] == windows(short)[1:]


def test_epochs_and_seeds_give_different_orders() -> None:
    stream, other = stream_of([6400], 8), stream_of([6400], 8, seed=1)
    size = stream.end_of_epochs(1)
    orders = [served_tokens(stream, epoch * size, (epoch + 1) * size)[0].tolist() for epoch in range(3)]
    orders.append(served_tokens(other, 0, size)[0].tolist())
    assert len({tuple(order) for order in orders}) == 4


def test_short_last_block_is_shuffled() -> None:
    """Over many epochs the short block at the end of the axis is as likely in any place as in any other."""
    stream = stream_of([64 * 20 + 40], 8, block_tokens=64, window=4)
    size = stream.end_of_epochs(1)
    places = []
    for epoch in range(200):
        blocks, end = [], epoch * size
        while end < (epoch + 1) * size:
            window = stream.window_at(end)
            units, _ = window.at(np.arange(window.count))
            blocks.extend(window.units[unit].number for unit in units.tolist())
            end += window.count
        places.append(np.flatnonzero(np.array(blocks) == 20).mean() / size)
    assert 0.45 < np.mean(places) < 0.55
    assert min(places) < 0.15
    assert max(places) > 0.85


def test_sequences_are_shuffled_within_their_window() -> None:
    stream = stream_of([64 * 40], 8, block_tokens=64, window=4)
    for number in range(10):
        positions, _ = served_tokens(stream, number * 32, (number + 1) * 32)
        blocks = positions[::8] // 64
        assert len(set(blocks.tolist())) == 4
        assert np.count_nonzero(np.diff(blocks)) > 12  # it would be 3 in block order


def test_unshuffled_stream_keeps_the_order() -> None:
    stream = stream_of([1000], 10, block_tokens=100, shuffled=False)
    assert np.array_equal(served_tokens(stream, 0, 100)[0], np.arange(1000))
