"""A rank is found by counting digits of sort keys, whatever the values and however they are spread over tasks."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datakit.conditions.config import Rule
from datakit.conditions.ranks import DIGIT, Search, beginning, counted, digits, sortable

VALUES = st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0, 2.0**53])
HALVES = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63])
Words = tuple[np.ndarray, np.ndarray, np.ndarray]


def words_of(rows: Sequence[tuple[float, int, int]]) -> Words:
    values, high, low = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    return sortable(np.array(values, np.float64)), np.array(high, np.uint64), np.array(low, np.uint64)


@given(st.lists(st.tuples(VALUES, HALVES, HALVES), min_size=1, max_size=60), st.data())
def test_search_finds_the_key_of_each_rank(rows: list[tuple[float, int, int]], data: st.DataObject) -> None:
    rank, tasks = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(1, 4))
    parts = [words_of(rows[start::tasks]) for start in range(tasks)]
    search = Search(rank=rank)
    while search.bits < 3 * 64:
        search = search.narrowed(counted(_counts(part, search) for part in parts))
    expected = sorted(rows, key=lambda row: (row[0] + 0.0, *row[1:]))[rank]
    found = [word for part in parts for row in beginning(part, search) for word in [[int(one[row]) for one in part]]]
    assert found == [[int(one[0]) for one in words_of([expected])]] * len(found) and found
    assert search.remaining == len(found)


def _counts(part: Words, search: Search) -> list[tuple[int, int]]:
    values, numbers = np.unique(digits(part, search), return_counts=True)
    assert not len(values) or int(values.max()) < 1 << DIGIT
    return list(zip(values.tolist(), numbers.tolist(), strict=True))


@given(st.lists(VALUES, min_size=2, max_size=50))
def test_sortable_form_has_the_order_of_the_values(values: list[float]) -> None:
    column = np.array(values)
    keys = sortable(column)
    assert ((column[:, None] < column[None]) == (keys[:, None] < keys[None])).all()


@given(st.integers(1, 99), st.integers(0, 10**6))
def test_share_is_the_decimal_number_that_the_recipe_shows(percent: int, population: int) -> None:
    rule = Rule("x", lowest=percent / 100, by="1")
    assert rule.chosen(population) == int(Fraction(percent, 100) * population)
