"""Numbers: what a record's number becomes depends on the record and on the type of the whole source's column."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.normalize.columns.number_types import float_texts, largest_integers
from datakit.normalize.readers import line_chunks, slices
from tests.support.normalize.sources import normalize, write_lines

LARGE = 1234567890123456789


@pytest.mark.parametrize("neighbor", [1 << 63, 0.5])
def test_large_integers_beside_larger_ones_and_floats_become_strings(tmp_path: Path, neighbor: Any) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", {"text": "a", "n": LARGE}, {"text": "b", "n": LARGE + 1})
    write_lines(tmp_path / "in" / "b.jsonl", {"text": "c", "n": neighbor}, {"text": "d", "n": 7})
    rows = {row["text"]: row["n"] for row in normalize(tmp_path, tmp_path / "in").rows()}
    assert rows == {"a": str(LARGE), "b": str(LARGE + 1), "c": str(neighbor), "d": "7"}


def test_parquet_integers_of_64_bits_unite_without_loss(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    files = {"a": (pa.int64(), -5), "b": (pa.uint64(), 7), "c": (pa.int64(), LARGE)}
    for name, (kind, value) in files.items():
        pq.write_table(pa.table({"text": [name], "n": pa.array([value], kind)}), tmp_path / "in" / f"{name}.parquet")
    rows = {row["text"]: row["n"] for row in normalize(tmp_path / "1", tmp_path / "in").rows()}
    assert rows == {"a": -5, "b": 7, "c": LARGE}
    unsigned = pa.table({"text": ["d"], "n": pa.array([(1 << 64) - 1], pa.uint64())})
    pq.write_table(unsigned, tmp_path / "in" / "d.parquet")
    rows = {row["text"]: row["n"] for row in normalize(tmp_path / "2", tmp_path / "in").rows()}
    assert rows == {"a": "-5", "b": "7", "c": str(LARGE), "d": str((1 << 64) - 1)}


literals = st.one_of(
    st.integers(-(1 << 65), 1 << 65).map(str),
    st.integers(-9, 9).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["-0", "-0.0", "1e15", "1e16", "9007199254740993", "true", "null", '"a"', "1.50"]),
)


@settings(max_examples=25, deadline=None)
@given(values=st.lists(literals, min_size=2, max_size=5), chunk=st.integers(1, 120), part=st.integers(1, 150))
def test_values_do_not_depend_on_chunks_and_slices(values: list[str], chunk: int, part: int) -> None:
    lines = "".join(f'{{"text": "{n}", "id": {value}, "v": {value}}}\n' for n, value in enumerate(values))
    with TemporaryDirectory() as name:
        path = Path(name) / "in.jsonl"
        path.write_text(lines)
        whole = normalize(Path(name) / "whole", path)
        with (
            patch.object(line_chunks, "CHUNK_BYTES", chunk),
            patch.object(slices, "SLICE_BYTES", part),
            patch.object(slices, "FILE_OVERHEAD", 0),
        ):
            pieces = normalize(Path(name) / "pieces", path)
        assert whole.table().equals(pieces.table())
        rows = {int(row["text"]): row["source_id"] for row in whole.rows()}
    for number, value in enumerate(values):
        if value not in ("null", "-0"):
            assert rows[number] == value.strip('"')


def test_floats_as_text_do_not_show_whether_they_were_integers() -> None:
    floats = pa.array([0.5, 5.0, None, -0.0, 1e15, float(1 << 53), 1e300, float("inf")])
    digits = ["0.5", "5", None, "0", "1000000000000000", "9007199254740992", "1e+300", "inf"]
    assert float_texts(floats).to_pylist() == digits


def test_large_integers_are_found_at_any_depth() -> None:
    rows = [{"a": 1, "b": {"c": [LARGE, None]}}, {"a": -(1 << 53), "b": None}, {"a": None, "b": {"c": [-LARGE - 1]}}]
    assert largest_integers(pa.Table.from_pylist(rows)) == {("b", "c", ""): LARGE + 1}
