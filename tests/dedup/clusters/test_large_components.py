"""Large components are found, whatever the pieces in which their rows pass by."""

from __future__ import annotations

import numpy as np
import pytest

from datakit.dedup.clusters import large_components
from datakit.dedup.clusters.large_components import LargeComponents


def counted(components: np.ndarray, pieces: int, least: int) -> dict[int, int]:
    large = LargeComponents(least)
    for piece in np.array_split(components, pieces):
        large.add(piece)
    return dict(large.found())


def test_counts_of_small_pieces_are_exact() -> None:
    components = np.random.default_rng(1).permutation(np.repeat(np.arange(50, dtype=np.uint64), np.arange(50)))
    for pieces in (1, 7, 2000):
        assert counted(components, pieces, 30) == {number: number for number in range(30, 50)}


def test_a_count_lacks_at_most_its_share_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_components, "COUNTED_SHARE", 20)
    generator = np.random.default_rng(2)
    components = generator.permutation(np.repeat(np.arange(300, dtype=np.uint64), [5] * 297 + [500, 700, 900]))
    found = counted(components, 9, 300)
    assert set(found) == {297, 298, 299}
    for component, size in zip((297, 298, 299), (500, 700, 900), strict=True):
        assert size - len(components) / 20 <= found[component] <= size


def test_memory_does_not_grow_with_the_number_of_components(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_components, "COUNTED_SHARE", 20)
    large = LargeComponents(1)
    for first in range(0, 40_000, 10_000):
        large.add(np.arange(first, first + 10_000, dtype=np.uint64))
    assert large.found() == []
