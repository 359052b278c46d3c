"""Batches and sequences by index, for grain and PyTorch."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from datakit.errors import LoaderError
from datakit.loader import BatchSource, Loader, SequenceSource
from tests.support.loader.mixtures import plain_and_packed
from tests.support.paths import REPOSITORY


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


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_torch_example_of_the_docs_serves_each_batch_once(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker processes import the example, so it is written to a module."""
    pytest.importorskip("torch", reason="torch is not installed")
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/loader.md").read_text(), re.DOTALL)
    (example,) = [block for block in blocks if "class Mixed" in block]
    definition, use = example.split("batches = ")
    if workers:
        more = f', num_workers={workers}, multiprocessing_context="spawn")'
        use = re.sub(r"\)\s*$", more, use)
    function = f"def make(mixture, rank, world, step):\n    return {use}"
    (tmp_path / "mixed_example.py").write_text(
        f"import torch\n\nfrom datakit.loader import Loader\n\n\n{definition}{function}"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mixed_example", raising=False)
    mixture = plain_and_packed(stop="first_exhausted")
    batches = importlib.import_module("mixed_example").make(mixture, 1, 2, 3)
    if workers == 2:
        with pytest.raises(RuntimeError, match="each worker would yield every batch"):
            list(batches)
        return
    found = list(batches)
    with Loader(mixture, host=1, hosts=2) as loader:
        assert loader.steps is not None and len(found) == loader.steps - 3
        for step, batch in enumerate(found, 3):
            assert batch.keys() == loader[step].arrays().keys()
            assert all(np.array_equal(batch[name], array) for name, array in loader[step].arrays().items())


def test_torch_shares_a_batch_source_among_worker_processes() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with Loader(plain_and_packed()) as loader:
        settings = {"batch_size": None, "num_workers": 2, "multiprocessing_context": "spawn"}
        found = list(torch.utils.data.DataLoader(BatchSource(loader, steps=7), **settings))
        assert len(found) == 7
        assert all(np.array_equal(batch["tokens"], loader[step].tokens) for step, batch in enumerate(found))
