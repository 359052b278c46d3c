"""The copies beyond the first ones are marked, wherever the windows of sorted rows end and however many there are."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.engine.exchange import sorted_blocks
from datakit.engine.exchange.sorted_blocks import sort_rows
from datakit.passages.config import SearchConfig
from datakit.passages.find_copies import HASH, Copies
from datakit.passages.phase_data import Search
from datakit.passages.route import PASSAGE

SEARCHES = [
    Search("first", 0, SearchConfig("line")),
    Search("none", 1, SearchConfig("line", keep=0, above=2)),
    Search("many", 2, SearchConfig("line", keep=2, above=4)),
]


def passages(hashes: list[tuple[int, int]], searches: list[int]) -> pa.Table:
    """Passages in the order of the dataset, each in a document of its own."""
    high, low = np.array(hashes, np.uint64).reshape(-1, 2).T
    rows = np.arange(len(hashes))
    columns = [high, low, rows.astype(np.uint64), rows.astype(np.uint32), (rows + 1).astype(np.uint32)]
    return pa.table([*map(pa.array, columns), pa.array(searches, pa.uint8())], schema=PASSAGE)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=40), st.integers(1, 9))
def test_copies_are_marked_across_windows(hashes: list[tuple[int, int]], size: int) -> None:
    searches = [high % 3 for high, _ in hashes]  # a hash belongs to one search
    table = passages(hashes, searches)
    order = sorted(range(len(hashes)), key=lambda row: hashes[row])
    ordered = table.take(pa.array(order, pa.int64()))
    copies = Copies(SEARCHES)
    spans = copies.spans(lambda: (ordered.slice(start, size) for start in range(0, len(hashes), size)))
    found = sorted(row for one in spans for row in one["row"].to_pylist())
    groups = defaultdict[tuple[int, int], list[int]](list)
    for row, one in enumerate(hashes):
        groups[one].append(row)
    expected = [0, 0, 0]
    wanted = []
    for (high, _), rows in groups.items():
        config = SEARCHES[high % 3].config
        if len(rows) > config.threshold:
            wanted += rows[config.keep :]
            expected[high % 3] += 1
    assert found == sorted(wanted)
    assert copies.read.tolist() == [searches.count(number) for number in range(3)]
    assert copies.marked.tolist() == [sum(searches[row] == number for row in wanted) for number in range(3)]
    assert copies.repeated.tolist() == expected


@pytest.mark.parametrize("search", SEARCHES, ids=lambda one: one.name)
def test_copies_that_fill_many_blocks_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search: Search
) -> None:
    for name, value in (("BLOCK_BYTES", 4_000), ("WINDOW_BYTES", 2_000), ("SAMPLE_BYTES", 500)):
        monkeypatch.setattr(sorted_blocks, name, value)
    generator = np.random.default_rng(5)
    hashes = [(7, 7) if generator.random() < 0.8 else (int(generator.integers(20)), 0) for _ in range(3_000)]
    table = passages(hashes, [search.number] * len(hashes))
    rows = sort_rows((table.slice(start, 100) for start in range(0, 3_000, 100)), HASH, tmp_path)
    assert len(list(rows.merged())) > 20
    spans = [row for one in Copies(SEARCHES).spans(rows.merged) for row in one["row"].to_pylist()]
    most = [row for row, one in enumerate(hashes) if one == (7, 7)]
    assert [row for row in spans if hashes[row] == (7, 7)] == most[search.config.keep :]
