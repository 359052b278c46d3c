"""The types in which `where` sees its columns: declared, or decided for the whole source."""

from __future__ import annotations

import gzip
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import InputError, RecipeError
from datakit.normalize.readers import line_chunks, slices
from tests.support.normalize.sources import check_contract, normalize, write_lines

OLD = {"text": "old", "year": 900}


def kept(root: Path, source: Path, **config: Any) -> set[str]:
    result = normalize(root, source, **config)
    check_contract(result)
    return {row["text"] for row in result.rows()}


def test_selection_does_not_depend_on_chunks(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", OLD, {"text": "x"}, {"text": "new", "year": "n.d."})
    whole = kept(tmp_path / "whole", tmp_path / "in.jsonl", where="year > '1000'")
    with patch.object(slices, "SLICE_BYTES", 20), patch.object(slices, "FILE_OVERHEAD", 0):
        pieces = kept(tmp_path / "pieces", tmp_path / "in.jsonl", where="year > '1000'")
    assert whole == pieces == {"old", "new"}, "as strings, 900 comes after 1000"


def test_declared_types_need_no_pass_over_the_source(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", OLD, {"text": "new", "year": 1900})
    write_lines(tmp_path / "in" / "b.jsonl", {"text": "text", "year": "1950"})
    with patch("datakit.normalize.stage.FIND_TYPES", "nowhere:missing"):
        assert kept(tmp_path, tmp_path / "in", where="year > 1000", types={"year": "int64"}) == {"new", "text"}


def test_value_of_another_type_is_named_without_its_content(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", {"text": "a", "year": "secret"})
    with pytest.raises(RecipeError, match=r"'year' of in\.jsonl has a value that is not int64; declare") as caught:
        normalize(tmp_path, tmp_path / "in.jsonl", where="year > 1000", types={"year": "int64"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("types", [{}, {"year": "int64"}])
def test_damaged_stream_decides_no_type(tmp_path: Path, types: dict[str, str]) -> None:
    """Its values are of another type; as in routing, only the stream as a whole is quarantined."""
    good = b"".join(b'{"text": "%d", "year": %d}\n' % (year, year) for year in (900, 1900))
    bad = b'{"text": "x", "year": "n.d."}\n' * 100_000
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(good) + gzip.compress(bad)[:-8] + bytes(8))
    result = normalize(tmp_path, tmp_path / "in.jsonl.gz", where="year > 1000", types=types, max_quarantined=1)
    assert [row["text"] for row in result.rows()] == ["1900"]
    assert result.table().schema.field("year").type == pa.int64()
    assert result.quarantined() == [("in.jsonl.gz", len(good))]


def test_declared_column_that_where_does_not_read_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", OLD)
    with pytest.raises(RecipeError, match="`where` does not read the column 'yaer'; did you mean 'year'"):
        normalize(tmp_path, tmp_path / "in.jsonl", where="year > 1", types={"yaer": "int64"})


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_time_is_utc_on_every_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    local = datetime(2020, 1, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    column = pa.array([local], pa.timestamp("us", "Europe/Athens"))
    pq.write_table(pa.table({"text": ["a"], "seen": column}), tmp_path / "in.parquet")
    assert kept(tmp_path, tmp_path / "in.parquet", where="year(seen) = 2019 AND seen = '2019-12-31 23:00:00'") == {"a"}
    monkeypatch.undo()
    time.tzset()


def outcome(root: Path, source: Path, chunk: int, where: str) -> set[str] | str:
    """The documents kept when the file is read in chunks of this size, or the error."""
    with patch.object(line_chunks, "CHUNK_BYTES", chunk):
        try:
            return {row["text"] for row in normalize(root, source, where=where, max_quarantined=99).rows()}
        except InputError as error:
            return type(error).__name__


SCALAR = st.sampled_from([None, 5, 5.0, 5.5, "5", True, 2**60, -1])
NESTED = st.fixed_dictionaries({}, optional={"a": SCALAR, "b": st.lists(SCALAR, max_size=2)})
RECORD = st.fixed_dictionaries({}, optional={"m": st.none() | NESTED, "s": SCALAR})


@settings(max_examples=25, deadline=None)
@given(
    records=st.lists(RECORD, min_size=1, max_size=6),
    where=st.sampled_from(["m.a = '5'", "len(m.b) > 1", "m.a IS NOT NULL", "m.b[1] = '5'", "s = '5' OR m.a = s"]),
)
def test_structs_do_not_depend_on_chunks(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]], where: str
) -> None:
    folder = tmp_path_factory.mktemp("structs")
    write_lines(folder / "in.jsonl", *({**record, "text": f"t{n}"} for n, record in enumerate(records)))
    found = [outcome(folder / str(chunk), folder / "in.jsonl", chunk, where) for chunk in (1, 60, 1 << 20)]
    assert found[0] == found[1] == found[2]


def test_text_is_a_string_in_every_chunk(tmp_path: Path) -> None:
    """Records whose text is a number are quarantined, also if `where` reads them in a chunk of numbers only."""
    write_lines(tmp_path / "in.jsonl", {"text": "10"}, {"text": 7}, {"text": 30}, {"text": "9"}, {"text": None})
    for chunk in (1, 1 << 20):
        with patch.object(line_chunks, "CHUNK_BYTES", chunk):
            result = normalize(tmp_path / str(chunk), tmp_path / "in.jsonl", where="text > '2'", max_quarantined=9)
        assert [row["text"] for row in result.rows()] == ["9"]
        assert (result["quarantined"], result["where_dropped"]) == (2, 2)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_where_sees_text_of_any_type_as_valid_strings(tmp_path: Path, kind: pa.DataType) -> None:
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    raw = pa.array([b"abc", b"x\xff", None, "é".encode()], pa.large_binary() if large else pa.binary())
    texts = raw.view(kind)
    pq.write_table(pa.table({"text": texts}), tmp_path / "in.parquet")
    result = normalize(tmp_path, tmp_path / "in.parquet", where="length(text) < 3 OR text IS NULL")
    assert {row["text"] for row in result.rows()} == {"x\ufffd", "é"}
    assert (result["where_dropped"], result["missing"]) == (1, 1)


def test_text_cannot_be_declared_a_number(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", OLD)
    with pytest.raises(RecipeError, match="'text' is the text column, which always holds strings; cast it in `where`"):
        normalize(tmp_path, tmp_path / "in.jsonl", where="text > 1", types={"text": "int64"})


WITH_FIELDS = [
    {"text": "a", "meta": {"lang": "en", "n": 1}, "m": [{"role": "user"}]}, {"text": "b", "meta": None}, {"text": "c"},
    {"text": "d", "meta": {"lang": "de", "n": "2"}}, {"text": "e", "meta": {"n": "30"}, "m": []},
    {"text": "f", "a.b": 5},
]  # fmt: skip


@pytest.mark.parametrize(
    ("where", "types", "expected"),
    [
        ("meta.lang = 'en'", {}, "a"),
        ("meta.lang is null", {}, "bcef"),
        ("records.meta.lang <> 'en'", {}, "d"),
        ("meta.n > '2'", {}, "e"),
        ("meta.n >= 2", {"meta.n": "int64"}, "de"),
        ("meta.n >= 2 and meta.lang = 'de'", {"meta.n": "int64"}, "d"),
        ("m[1].role = 'user'", {}, "a"),
        ('"a.b" = 5', {}, "f"),
    ],
)
@pytest.mark.parametrize("cut", [False, True])
def test_fields_are_seen_whichever_chunks_have_them(
    tmp_path: Path, where: str, types: dict[str, str], expected: str, cut: bool
) -> None:
    write_lines(tmp_path / "in.jsonl", *WITH_FIELDS)
    with patch.object(slices, "SLICE_BYTES", 20 if cut else 1 << 20), patch.object(slices, "FILE_OVERHEAD", 0):
        assert kept(tmp_path, tmp_path / "in.jsonl", where=where, types=types) == set(expected)


def test_declared_fields_need_no_pass_over_the_source(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", *WITH_FIELDS)
    with patch("datakit.normalize.stage.FIND_TYPES", "nowhere:missing"):
        assert kept(tmp_path, tmp_path / "in.jsonl", where="meta.n > 1", types={"meta.n": "int64"}) == {"d", "e"}


def test_a_field_of_another_type_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", {"text": "a", "meta": {"n": 1.5}})
    with pytest.raises(
        RecipeError, match=r"where: column 'meta' of in\.jsonl has a value that is not struct<n: int64>"
    ):
        normalize(tmp_path / "1", tmp_path / "in.jsonl", where="meta.n > 1", types={"meta.n": "int64"})
    with pytest.raises(RecipeError, match=r"types: `where` does not read the column 'meta\.m'; did you mean 'meta\.n'"):
        normalize(tmp_path / "2", tmp_path / "in.jsonl", where="meta.n > 1", types={"meta.m": "int64"})
