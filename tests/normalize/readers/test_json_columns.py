"""The columnar JSON parser: strings that look like dates."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from datakit.errors import ColumnError
from tests.support.normalize.readers import lines, read_json, rows


def test_dates_stay_strings_in_every_chunk(tmp_path: Path) -> None:
    """A column may look like dates in one chunk, and like something else or nothing in the next."""
    values = ["2020-01-01"] * 5 + ["n/a"] * 5 + [None] * 5 + ["2021-01-01"] * 5 + [7] * 5
    data = b"".join(json.dumps({"text": "t", "day": value}).encode() + b"\n" for value in values)
    found, _ = read_json(tmp_path, data, 150)
    assert len(found) >= 4
    days = [row.get("day") for row in rows(found)]
    assert days[:20] == values[:20]
    assert {str(day) for day in days[20:]} == {"7"}, "a number next to dates becomes a string"


def test_lists_that_start_with_null_keep_their_values(tmp_path: Path) -> None:
    """pyarrow drops the first nulls of a list and shifts all later values (apache/arrow#51305)."""
    lists = [[None, 11, 12], [21, 22], None, [31, 32], [[None, 1], [None]], [{"a": [None, 2.5]}]]
    for values in (lists[:4], [[None], [1]], [None, [None, None, "x"], ["y"]], lists[4:5], lists[5:]):
        records = [{"text": "" if value is None else "t", "list": value} for value in values]
        found, _ = read_json(tmp_path, lines(records))
        assert rows(found) == records


@given(
    st.lists(
        st.recursive(
            st.one_of(st.none(), st.integers(-(1 << 53), 1 << 53)),
            lambda inner: st.lists(inner, max_size=3) | st.fixed_dictionaries({"a": inner}),
            max_leaves=5,
        ),
        min_size=1,
        max_size=6,
    )
)
def test_nested_values_are_those_of_json(values: list[Any]) -> None:
    """Values of different shapes have no common type, which is an error; whatever is read equals what `json` reads."""
    records = [{"text": "t", "value": value} for value in values]
    with TemporaryDirectory() as directory:
        try:
            found, _ = read_json(Path(directory), lines(records))
            table = pa.concat_tables([chunk.table for chunk in found])
        except (ColumnError, pa.ArrowInvalid, pa.ArrowTypeError):
            return
    assert without_nulls(table.to_pylist()) == without_nulls(json.loads(json.dumps(records)))


def without_nulls(value: Any) -> Any:
    """Leave out keys without a value: a column has all keys, and those that a record lacks are null."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value
