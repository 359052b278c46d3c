"""Packing gives the same bytes for any number of workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.loader import load_mixture
from datakit.pipeline import packing_stage
from datakit.pipeline.run_packing import pack_mixture
from tests.support.loader.mixture_files import cache, mixture, small_tasks
from tests.support.small_shelf import tree

__all__ = ["cache", "mixture", "small_tasks"]  # fixtures


@pytest.mark.usefixtures("small_tasks")
def test_output_ignores_the_number_of_workers(mixture: Path) -> None:
    roots = [mixture.parent / f"root{workers}" for workers in (1, 4)]
    for root, workers in zip(roots, (1, 4), strict=True):
        results = pack_mixture(load_mixture(mixture), str(root), workers=workers)
        assert [(result.component, result.length, result.reused) for result in results] == [
            ("code", 64, False),
            ("code", 128, False),
        ]
        assert results[0].manifest.totals.rows > 3 * packing_stage.BLOCKS_A_TASK
    one, four = map(tree, roots)
    assert one == four
    assert sorted(Path(path).name for path in one) == ["counts.npy", "counts.npy", "manifest.json", "manifest.json"]
