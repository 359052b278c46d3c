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

from datakit.errors import RecipeError
from datakit.normalize.readers import slices
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
    with pytest.raises(RecipeError, match="where does not read the column 'yaer'; did you mean 'year'"):
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
