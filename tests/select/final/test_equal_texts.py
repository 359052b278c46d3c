"""The distinct edited ids are found exactly, with work that grows with the ids and not with the number of runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.select.final import equal_texts
from datakit.select.final.equal_texts import PAIR, SCHEMA, _distinct

NUMBERS = st.sampled_from([0, 1, 2, 1 << 63, (1 << 64) - 1])
TABLES = st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=8), max_size=8)


def _table(ids: list[tuple[int, int]]) -> pa.Table:
    columns = [np.array([one[place] for one in ids], np.uint64) for place in (0, 1)]
    return pa.table([*columns, *([np.zeros(len(ids), np.uint64)] * 2)], schema=SCHEMA)


@given(TABLES, st.sampled_from([1, 3, 1 << 16]))
def test_distinct_ids_are_those_of_a_set(ids: list[list[tuple[int, int]]], least: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equal_texts, "LEAST_MERGED", least)
        found = _distinct(map(_table, ids))
    assert found.dtype == PAIR
    assert found.tolist() == sorted({one for table in ids for one in table})


def test_many_runs_are_not_merged_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    touched, runs, size, concatenate = 0, 2000, 100, np.concatenate

    def counting(arrays: Any, *arguments: Any, **options: Any) -> np.ndarray:
        nonlocal touched
        found = concatenate(arrays, *arguments, **options)
        touched += len(found)
        return found

    tables = [_table([(number, row) for row in range(size)]) for number in range(runs)]
    monkeypatch.setattr(np, "concatenate", counting)
    found = _distinct(tables)
    assert len(found) == runs * size
    assert runs * size <= touched <= 3 * runs * size, "each merge may take all ids known so far once"
