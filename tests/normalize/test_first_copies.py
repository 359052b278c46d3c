"""The first record with each id is kept, no matter how the records are divided into blocks."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datakit.normalize.duplicates import changes
from datakit.normalize.first_copies import FirstCopies, Kept

IDS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=60)


@given(IDS, st.lists(st.integers(0, 60), max_size=8))
def test_first_copies_are_kept(ids: list[tuple[int, int]], cuts: list[int]) -> None:
    found, kept = FirstCopies(), list[int]()
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    for start, stop in pairwise(bounds):
        high, low = np.array(ids[start:stop], np.uint64).reshape(-1, 2).T
        order = np.lexsort((low, high))
        first = changes(high[order], low[order])
        kept += (start + found.add(high[order][first], low[order][first], order[first])).tolist()
    expected = sorted({one: row for row, one in reversed(list(enumerate(ids)))}.values())
    assert kept == expected
    records = found.all()
    assert [(int(high), int(low)) for high, low in zip(records.high, records.low, strict=True)] == sorted(set(ids))
    assert [ids[kept[place]] for place in records.place] == sorted(set(ids))
    assert found.rows == len(expected)


def test_blocks_without_new_ids_add_nothing_to_look_up() -> None:
    """A source that repeats its texts costs the same for each block, however many blocks came before."""
    found, ids = FirstCopies(), np.arange(10, dtype=np.uint64)
    assert len(found.add(ids, ids, np.arange(10))) == 10
    with patch.object(Kept, "contains", autospec=True, side_effect=Kept.contains) as contains:
        for _ in range(20):
            assert not len(found.add(ids, ids, np.arange(10)))
    assert contains.call_count == 20
