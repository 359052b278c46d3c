"""Ids survive the conversion between hex digits and pairs of uint64, in the same order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.storage import ids

IDS = st.lists(st.integers(0, 2**128 - 1).map("{:032x}".format), max_size=20)


@given(IDS)
def test_ids_convert_back_and_forth(texts: list[str]) -> None:
    for column in (pa.array(texts, pa.string()), pa.chunked_array([texts[:2], texts[2:]], pa.large_string())):
        high, low = ids.ids_from_arrow(column)
        assert ids.ids_to_arrow(high, low).to_pylist() == texts
    digests = b"".join(bytes.fromhex(text) for text in texts)
    assert [array.tolist() for array in ids.ids_from_digests(digests)] == [high.tolist(), low.tolist()]


@given(IDS)
def test_ascending_ids_are_sorted_and_unique(texts: list[str]) -> None:
    assert ids.strictly_ascending(*ids.ids_from_arrow(pa.array(texts, pa.string()))) == (texts == sorted(set(texts)))


@pytest.mark.parametrize("text", ["", "0" * 31, "0" * 33, "A" * 32, "g" * 32, None])
def test_other_strings_are_refused(text: str | None) -> None:
    with pytest.raises(ValueError, match="an id column must hold"):
        ids.ids_from_arrow(pa.array([text], pa.string()))


def test_partition_ranges_cover_all_ids_in_order() -> None:
    ranges = [ids.partition_range(index, 3) for index in range(8)]
    assert (ranges[0][0], ranges[-1][1]) == ("0" * 32, "f" * 32)
    for (_, last), (first, _) in pairwise(ranges):
        assert int(last, 16) + 1 == int(first, 16)
    assert np.all([first < last for first, last in ranges])
