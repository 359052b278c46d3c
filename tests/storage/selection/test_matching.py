"""Rows of a sparse table are found in a partition by id."""

from __future__ import annotations

import numpy as np

from datakit.storage.selection.matching import count_up_to


def test_count_up_to_compares_whole_ids() -> None:
    high, low = np.array([1, 1, 1, 2], np.uint64), np.array([3, 5, 9, 0], np.uint64)
    assert [count_up_to(high, low, limit) for limit in [(0, 9), (1, 4), (1, 5), (1, 10), (2, 0)]] == list(range(5))
