"""Batches reach the devices in order and are checked on the way."""

from __future__ import annotations

import threading
from collections.abc import Generator

import numpy as np
import pytest

from datakit.errors import UsageError
from datakit.loader import Loader
from datakit.trainer.device_feed import Feed, place, stage_at
from datakit.trainer.models import weights
from tests.support.trainer.trainer_runs import Rows, TextBytes, growing_batches

SENTENCE = b"It was the best of times, it was the worst of times. " * 40


def test_stages_follow_the_sequences() -> None:
    record = {"stages": [[0, {"web": 1.0}], [100, {"web": 0.5, "code": 0.5}]]}
    assert stage_at(record, 99) == (0, {"web": 1.0})
    assert stage_at(record, 100) == (1, {"web": 0.5, "code": 0.5})
    assert stage_at({}, 5) is None


def test_a_feed_keeps_order_and_ends_its_thread() -> None:
    text, mesh = TextBytes(SENTENCE), weights.make_mesh()
    with Feed(text, mesh, 256, 3, 6) as feed:
        for step in (3, 4, 5):
            placed = feed.next()
            assert placed is not None
            np.testing.assert_array_equal(placed.batch.tokens, text.batch(step).tokens)
        assert feed.next() is None
        assert feed.waited >= 0

    class Broken(TextBytes):
        def iterate(self, start: int = 0, stop: int | None = None) -> Generator[Rows, None, None]:
            yield self.batch(0)
            raise OSError("the disk is gone")

    with Feed(Broken(SENTENCE), mesh, 256, 0, 9) as feed:
        feed.next()
        with pytest.raises(OSError, match="the disk is gone"):
            feed.next()
    with Feed(text, mesh, 256, 0, 10**6):
        pass  # left early
    assert not [thread for thread in threading.enumerate() if thread.name == "datakit-loader-batches"]


def test_padding_is_not_counted() -> None:
    rows = TextBytes(SENTENCE).batch(0)
    segments = rows.segments.copy()
    segments[:, 16:] = 0
    placed = place(Rows(rows.tokens, segments, rows.loss_mask), weights.make_mesh(), 256)
    assert (placed.sequences, placed.tokens) == (8, 8 * 16)


def test_rows_and_lengths_must_fit_the_mesh() -> None:
    mesh = weights.make_mesh(tensor=4)
    place(TextBytes(SENTENCE, rows=2, length=16).batch(0), mesh, 256)
    with pytest.raises(UsageError, match="a batch of 3 sequences cannot be split evenly over 2 devices"):
        place(TextBytes(SENTENCE, rows=3, length=16).batch(0), mesh, 256)
    with pytest.raises(UsageError, match="sequences of 18 tokens cannot be split evenly over tensor_parallel = 4"):
        place(TextBytes(SENTENCE, rows=2, length=18).batch(0), mesh, 256)


@pytest.mark.parametrize("wrong", [-1, 256])
def test_one_unknown_id_is_an_error(wrong: int) -> None:
    rows = TextBytes(SENTENCE).batch(0)
    tokens = rows.tokens.copy()
    place(Rows(tokens, rows.segments, rows.loss_mask), weights.make_mesh(), 256)
    tokens[3, 7] = wrong
    with pytest.raises(UsageError, match=f"a batch holds the id {wrong}, but the model's vocabulary has 256 ids"):
        place(Rows(tokens, rows.segments, rows.loss_mask), weights.make_mesh(), 256)


def test_a_loader_outlines_the_shapes_of_batches() -> None:
    with Loader(growing_batches()) as loader:
        assert loader.outline(6) == [(3, 8, 16), (1, 8, 32), (2, 16, 32)]
        assert loader.outline(4) == [(3, 8, 16), (1, 8, 32)]
        assert loader.outline(0) == []
        for batches, rows, length in [(0, 8, 16), (3, 8, 32), (4, 16, 32)]:
            assert loader[batches].tokens.shape == (rows, length)
