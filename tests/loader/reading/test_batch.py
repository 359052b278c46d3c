"""Batches have the right tokens, segments, positions and masks, for every kind of component."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import LoaderError
from datakit.loader import ArraySource, Batch, Component, Loader, Mixture, Packing, Schedule, Shuffle
from tests.support.loader.sources import counting, random_lengths

KINDS = st.sampled_from(["block", "full", "none"])
PACKINGS = st.sampled_from([None, Packing(), Packing("truncate"), Packing("drop", 3)])


def naive_segments(batch: Batch, source: ArraySource) -> tuple[np.ndarray, np.ndarray]:
    """Compute segments and positions token by token. A segment starts at each document boundary and after each gap."""
    borders = set(source.document_borders(0, source.tokens).tolist())
    segments, positions = np.zeros(batch.shape, int), np.zeros(batch.shape, int)
    for row in range(batch.shape[0]):
        number, place = 0, 0
        for i in range(int(batch.lengths[row])):
            token = int(batch.tokens[row, i])
            if i == 0 or token in borders or token != batch.tokens[row, i - 1] + 1:
                number, place = number + 1, 0
            segments[row, i], positions[row, i] = number, place
            place += 1
    return segments, positions


@given(
    seed=st.integers(0, 10**6),
    kind=KINDS,
    packing=PACKINGS,
    block_tokens=st.integers(40, 200),
    lengths=st.tuples(st.integers(2, 30), st.integers(2, 40)),
)
@settings(max_examples=40, deadline=None)
def test_batches_match_a_naive_reader(
    seed: int, kind: str, packing: Packing | None, block_tokens: int, lengths: tuple[int, int]
) -> None:
    sizes = [*random_lengths(seed, 40, 25), 1]  # a document of one token fits in any sequence
    source = ArraySource(np.arange(sum(sizes), dtype=np.uint16), sizes, np.arange(sum(sizes)) % 3 > 0)
    shuffle = Shuffle(kind, block_tokens, 2 if kind == "block" else None)
    mixture = Mixture(
        {"x": Component(source, packing=packing, shuffle=shuffle)},
        {"x": 1},
        seed=seed,
        sequence_length=Schedule(((0, lengths[0]), (5, lengths[1]))),
        batch_size=3,
        memory_bytes=[400, 4000, 1 << 20][seed % 3] + 12 * block_tokens,
        pad_id=65535,
        block=8,
    )
    with Loader(mixture) as loader:
        for step in range(12):
            batch = loader[step]
            segments, positions = naive_segments(batch, source)
            real = np.arange(batch.shape[1]) < batch.lengths[:, None]
            assert (batch.lengths > 0).all()
            assert (batch.tokens[~real] == 65535).all()
            assert (batch.tokens[real] < source.tokens).all()
            assert np.array_equal(batch.segments, segments)
            assert np.array_equal(batch.positions, positions)
            assert np.array_equal(batch.loss_mask, real & (batch.tokens % 3 > 0))
            assert batch.padding == np.count_nonzero(~real)
            assert batch.tokens.dtype == batch.segments.dtype == batch.positions.dtype == np.int32


def test_without_segments_no_border_is_read() -> None:
    class NoBorders(ArraySource):
        def document_borders(self, start: int, stop: int) -> np.ndarray:
            raise AssertionError("a border was looked up")

    with Loader(
        Mixture({"x": Component(NoBorders(np.arange(100)))}, {"x": 1}, sequence_length=10), segments=False
    ) as loader:
        batch = loader[0]
        assert set(batch.arrays()) == {"tokens", "loss_mask"}
        with pytest.raises(LoaderError, match="segments=False"):
            _ = batch.segments


def test_rows_name_their_component() -> None:
    components = {name: Component(ArraySource(np.full(64, i, np.uint32))) for i, name in enumerate(("a", "b", "c"))}
    with Loader(Mixture(components, dict.fromkeys(components, 1), sequence_length=4, batch_size=30)) as loader:
        batch = loader[3]
    assert [batch.names[i] for i in batch.components] == ["abc"[token] for token in batch.tokens[:, 0]]


def test_last_batch_ends_in_padding_rows() -> None:
    mixture = Mixture(
        {"x": Component(counting([10, 15]))}, {"x": 1}, sequence_length=10, batch_size=4, stop="first_exhausted",
        final_batch="pad", pad_id=9,
    )  # fmt: skip
    with Loader(mixture) as loader:
        assert len(loader) == 1
        batch = loader[0]
    assert batch.lengths.tolist()[3] == 0
    assert batch.components.tolist() == [0, 0, 0, -1]
    assert (batch.tokens[3] == 9).all()
    assert not batch.segments[3].any()
    assert not batch.loss_mask[3].any()
    assert batch.padding == 4 * 10 - 25
    assert loader.metrics.snapshot()["padding"] == 15


def test_large_token_ids_are_kept() -> None:
    source = ArraySource(np.array([0, 70_000, 2**31 - 1, 5], np.uint32))
    with Loader(Mixture({"x": Component(source)}, {"x": 1}, sequence_length=4, batch_size=1)) as loader:
        assert loader[0].tokens.tolist() == [[0, 70_000, 2**31 - 1, 5]]
