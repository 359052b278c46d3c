"""The index groups n-grams by their 96 bits, and its tables find every key and no other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datakit.annotate.contamination.index import group_by_ngram
from datakit.text.key_tables import first_row, leading_bits, new_table, possible

KEYS = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3), max_size=60)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3)), max_size=40))
def test_n_grams_with_equal_keys_and_different_checks_remain_different(rows: list[tuple[int, int, int]]) -> None:
    rows.sort(key=lambda row: row[2])
    columns = [np.array([row[i] for row in rows], kind) for i, kind in ((0, np.uint64), (1, np.uint32), (2, np.uint32))]
    keys, checks, ends, postings = group_by_ngram(*columns)
    found = {
        (int(key), int(check)): postings[ends[i] : ends[i + 1]].tolist()
        for i, (key, check) in enumerate(zip(keys, checks, strict=True))
    }
    wanted: dict[tuple[int, int], list[int]] = {}
    for key, check, item in sorted(set(rows)):
        wanted.setdefault((key, check), []).append(item)
    assert list(found.items()) == list(wanted.items())


@given(KEYS, KEYS)
def test_a_table_finds_its_keys_and_no_others(keys: list[int], others: list[int]) -> None:
    table, asked = new_table(np.array(sorted(keys), np.uint64)), np.array(keys + others, np.uint64)
    shift, chosen = leading_bits(len(table.directory) - 1), np.empty(len(asked), np.int64)
    count = possible(asked, len(asked), table.bitmap, leading_bits(64 * len(table.bitmap)), chosen)
    assert set(range(len(keys))) <= set(chosen[:count].tolist())
    for key in asked:
        row = first_row(table, shift, key)
        assert row == (sorted(keys).index(int(key)) if int(key) in keys else -1)
