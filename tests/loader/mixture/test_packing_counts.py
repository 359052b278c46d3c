"""Stored counts are used only for the tokens and packing they were made for."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from datakit.errors import CorruptError, LoaderError
from datakit.loader import Loader, load_mixture
from datakit.loader.mixture import packing_counts
from datakit.pipeline import packing_stage
from datakit.pipeline.run_packing import PackingResult, pack_mixture
from tests.support.loader.mixture_files import BLOCKS_A_TASK, cache, changed, mixture

__all__ = ["cache", "mixture"]  # fixtures


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root to share, packed by the first test that needs it."""
    return tmp_path_factory.mktemp("packed") / "root"


@pytest.fixture
def results(mixture: Path, packed: Path, monkeypatch: pytest.MonkeyPatch) -> list[PackingResult]:
    """The packing steps of the mixture, for lengths 64 and 128."""
    monkeypatch.setattr(packing_stage, "BLOCKS_A_TASK", BLOCKS_A_TASK)
    return pack_mixture(load_mixture(mixture), str(packed), workers=2)


def test_stored_counts_equal_the_loaders_own(mixture: Path, packed: Path, results: list[PackingResult]) -> None:
    with Loader(load_mixture(mixture)) as counted, Loader(load_mixture(mixture, packing_root=str(packed))) as stored:
        assert stored.packing_report() == {"code": {}}, "it counted nothing itself"
        assert set(counted.packing_report()["code"]) == {64, 128}
        for step in (0, 35, 41, 59):
            assert np.array_equal(counted[step].tokens, stored[step].tokens)
            assert np.array_equal(counted[step].segments, stored[step].segments)
        for length, result in zip((64, 128), results, strict=True):
            stream, counters = counted.order.streams[0], result.manifest.counters
            total = stream.counts.of(length).total
            assert result.manifest.details["sequences"] == total
            assert total * length == counters["packing/kept"] + counters["packing/padding"]
            assert counters["packing/tokens"] == stream.source.tokens


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("validation_tokens = 1_000", "validation_tokens = 1_500"),
        ("block_tokens = 512", "block_tokens = 1024"),
        ('"split"', '"truncate"'),
    ],
)
@pytest.mark.usefixtures("results")
def test_counts_of_something_else_are_not_used(mixture: Path, packed: Path, old: str, new: str) -> None:
    with Loader(load_mixture(changed(mixture, old, new), packing_root=str(packed))) as loader:
        assert loader[0].tokens.shape == (8, 64)
        assert 64 in loader.packing_report()["code"], "it counted itself"


def test_missing_counts_of_a_large_component_are_refused(
    mixture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(tmp_path / "nowhere")
    assert load_mixture(mixture, packing_root=root).components["code"].packing_counts == {}
    monkeypatch.setattr(packing_counts, "MAX_COUNTED_BLOCKS", 3)
    with pytest.raises(LoaderError, match=f"run `datakit mixture pack` on .* with --root {root}"):
        load_mixture(mixture, packing_root=root)


def test_altered_counts_are_refused(mixture: Path, packed: Path, results: list[PackingResult], tmp_path: Path) -> None:
    root = Path(shutil.copytree(packed, tmp_path / "altered"))
    counts = root / Path(results[0].directory).relative_to(packed) / "counts.npy"
    data = bytearray(counts.read_bytes())
    data[-1] ^= 1
    counts.write_bytes(data)
    with pytest.raises(CorruptError, match="checksum"):
        load_mixture(mixture, packing_root=str(root))
