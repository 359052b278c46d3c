"""Columns are compared row by row, wherever row groups end."""

from __future__ import annotations

import pyarrow as pa
import pytest

from datakit.validate.between.kept_values import first_difference

NAN = float("nan")


def rows(*values: float | None, cuts: tuple[int, ...] = ()) -> list[pa.Table]:
    """Tables of the values, cut at these rows."""
    whole = pa.table({"id": [f"{n:032x}" for n in range(len(values))], "score": pa.array(values, pa.float64())})
    ends = [*cuts, len(values)]
    return [whole.slice(first, stop - first) for first, stop in zip([0, *cuts], ends, strict=True)]


@pytest.mark.parametrize("cuts", [(), (1,), (0, 2, 2), (1, 2, 3)])
def test_equal_rows_are_equal_however_they_are_cut(cuts: tuple[int, ...]) -> None:
    assert first_difference(iter(rows(1.0, None, NAN, 4.0)), iter(rows(1.0, None, NAN, 4.0, cuts=cuts))) == ""


def test_first_difference_is_named() -> None:
    found = first_difference(iter(rows(1.0, 2.0, 3.0, cuts=(2,))), iter(rows(1.0, 2.0, 9.0)))
    assert found == f"in column 'score', in or after the document {2:032x}"


def test_missing_column_is_a_difference() -> None:
    assert "'score'" in first_difference(iter(rows(1.0)), iter([rows(1.0)[0].drop_columns(["score"])]))
