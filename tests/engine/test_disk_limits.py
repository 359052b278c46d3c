"""The limits on disk use: what a task may write, and how much space must stay free."""

from __future__ import annotations

import pytest

from datakit.engine.disk_limits import USUAL_FREE_BYTES, DiskLimits, WriteLimit
from datakit.errors import RecipeError


def test_limit_follows_the_input_above_the_floor() -> None:
    limits = DiskLimits(max_expansion=10, expansion_floor_bytes=1_000)
    assert [WriteLimit(limits, size).bytes for size in (0, 100, 101)] == [1_000, 1_000, 1_010]


def test_message_names_the_number_to_exceed() -> None:
    limits = DiskLimits(max_expansion=10, expansion_floor_bytes=1_000_000)
    said = str(WriteLimit(limits, 1_000).error(1_500_000, "bomb.parquet", "task 1"))
    assert said.startswith("bomb.parquet: reading this file makes a task write at least 1,500,000 bytes, but its limit")
    assert "its limit is 1,000,000 bytes for an input of 1,000 bytes (limits.max_expansion = 10 times" in said
    assert said.endswith("exclude this file or, if its content is right, set limits.max_expansion above 1,000")
    assert "raise limits.expansion_floor_bytes" in str(WriteLimit(limits, 0).error(2_000_000, "", "task 1"))
    limit = WriteLimit(DiskLimits(max_expansion=1_000, expansion_floor_bytes=1_000_000), 1_001)
    assert limit.bytes == 1_001_000, "more than the named number allows more"


def test_free_space_is_a_share_of_small_disks() -> None:
    assert DiskLimits().free_bytes(1 << 40) == USUAL_FREE_BYTES
    assert DiskLimits().free_bytes(10**9) == 20_000_000
    assert DiskLimits(min_free_bytes=5).free_bytes(1 << 40) == 5


@pytest.mark.parametrize(
    ("name", "value"), [("max_expansion", 0), ("expansion_floor_bytes", 0), ("min_free_bytes", -1)]
)
def test_impossible_limits_are_refused(name: str, value: int) -> None:
    with pytest.raises(RecipeError, match=name):
        DiskLimits(**{name: value})
