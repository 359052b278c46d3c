"""Tests of reading ranges ahead of their use."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.cache.read_ahead import read_ahead
from datakit.errors import CorruptError


@settings(max_examples=25)
@given(count=st.integers(0, 30), in_flight=st.integers(1, 6))
def test_reads_in_flight_are_bounded(count: int, in_flight: int) -> None:
    begun, lock, used = [], threading.Lock(), 0

    def read(start: int, stop: int) -> np.ndarray:
        with lock:
            begun.append(start)
        return np.array([start])

    for number, block in enumerate(read_ahead(read, [(n, n + 1) for n in range(count)], in_flight)):
        assert block.tolist() == [number]
        used += 1
        assert len(begun) <= used + in_flight - 1 or in_flight == 1
    assert used == count


def test_error_is_raised_when_its_range_is_due() -> None:
    def read(start: int, stop: int) -> np.ndarray:
        if start == 2:
            raise CorruptError("the third")
        return np.array([start])

    found = []
    with pytest.raises(CorruptError, match="the third"):
        for block in read_ahead(read, [(n, n + 1) for n in range(9)], 4):
            found.append(block.tolist())
    assert found == [[0], [1]]
