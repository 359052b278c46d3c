"""Batches and sequences by index, for grain and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from datakit.errors import LoaderError
from datakit.loader import BatchSource, Loader, SequenceSource
from tests.support.loader.mixtures import plain_and_packed


def test_sources_serve_batches_and_sequences_by_index() -> None:
    with Loader(plain_and_packed(stop="first_exhausted")) as loader:
        batches, sequences = BatchSource(loader), SequenceSource(loader, steps=5)
        assert (len(batches), len(sequences)) == (loader.steps, 20)
        assert set(batches[3]) == {"tokens", "segments", "positions", "loss_mask"}
        assert np.array_equal(np.stack([sequences[slot]["tokens"] for slot in range(12, 16)]), batches[3]["tokens"])
        assert np.array_equal(sequences[-1]["segments"], sequences[19]["segments"])
        for source in (batches, sequences):
            with pytest.raises(IndexError):
                source[len(source)]
    with Loader(plain_and_packed()) as endless, pytest.raises(LoaderError, match="as `steps`"):
        BatchSource(endless)


def test_grain_accepts_a_sequence_source() -> None:
    grain = pytest.importorskip("grain", reason="grain is not installed")
    with Loader(plain_and_packed()) as loader:
        dataset = grain.MapDataset.source(SequenceSource(loader, steps=6)).batch(4)
        assert np.array_equal(dataset[2]["tokens"], loader[2].tokens)


def test_torch_accepts_a_batch_source() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with Loader(plain_and_packed()) as loader:
        found = list(torch.utils.data.DataLoader(BatchSource(loader, steps=3), batch_size=None))
        assert np.array_equal(found[2]["tokens"].numpy(), loader[2].tokens)
