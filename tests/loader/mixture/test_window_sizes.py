"""Memory is divided into windows by fixed rules."""

from __future__ import annotations

import pytest

from datakit.errors import LoaderError
from datakit.loader import Shuffle
from datakit.loader.mixture.window_sizes import Claim, Grant, grant_windows
from datakit.loader.sources.token_source import BlockAxis


def claim(blocks: int, kind: str = "block", window: int | None = None) -> Claim:
    return Claim(BlockAxis(blocks * 100, 100), 2, Shuffle(kind, 100, window))


def test_small_components_fit_whole_and_others_share() -> None:
    grants = grant_windows({"small": claim(3), "large": claim(10_000), "huge": claim(10**6)}, 10_600)
    assert grants["small"] == Grant(3, True, 600)
    assert grants["large"] == Grant(12, True, 4800)  # a share of 5,000 bytes: 12 blocks of 200 bytes, and the next 12
    assert grants["huge"] == Grant(13, True, 5200)


def test_fixed_windows_are_kept() -> None:
    grants = grant_windows(
        {"named": claim(1000, window=7), "full": claim(1000, "full"), "order": claim(9, "none")}, 9000
    )
    assert grants["named"] == Grant(7, True, 2800)
    assert grants["full"] == Grant(1000, False, 0)
    assert grants["order"].resident


def test_too_little_memory_names_the_need() -> None:
    with pytest.raises(LoaderError, match=r"memory_bytes is 700, .*a, b need 800"):
        grant_windows({"a": claim(100), "b": claim(100)}, 700)
