"""`keep`, `drop` and `rename` choose what is stored; a column is read only if something needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datakit.errors import ColumnError
from datakit.normalize.columns.column_choice import ColumnChoice, wanted_paths
from datakit.normalize.config import Config
from tests.support.normalize.readers import read
from tests.support.normalize.sources import SOURCE, check_contract, normalize, write_lines

RECORD = {"id": "1", "text": "t", "url": "u", "lang": "en", "meta": {"x": 1}, "n": 5}
OWN = ["id", "text", "source", "source_id", "edited_id"]


@pytest.fixture(params=[".jsonl", ".parquet", ".arrow", ".csv"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file with one record."""
    return _written(tmp_path / f"in{request.param}")


def _written(path: Path) -> Path:
    table = pa.Table.from_pylist([RECORD])
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".arrow":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix == ".csv":
        path.write_text("id,text,url,lang,meta,n\n1,t,u,en,x,5\n")
    else:
        write_lines(path, RECORD)
    return path


@pytest.fixture(params=[".jsonl", ".parquet"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The same, in two formats."""
    return _written(tmp_path / f"in{request.param}")


def others(result: Any) -> list[str]:
    return [name for name in result.table().column_names if name not in OWN]


@pytest.mark.parametrize(
    ("settings", "stored"),
    [
        ({"keep": ("url",)}, ["url"]),
        ({"keep": ("lang", "url")}, ["url", "lang"]),
        ({"drop": ("meta", "n", "absent")}, ["url", "lang"]),
        ({"rename": {"lang": "language"}}, ["url", "language", "meta", "n"]),
        ({"keep": ("url", "n"), "rename": {"url": "n", "n": "url"}}, ["n", "url"]),
        ({"keep": ("url",), "where": "lang = 'en'"}, ["url"]),
        ({"drop": ("lang", "url"), "where": "lang = 'en'"}, ["meta", "n"]),
        ({"keep": ("url",), "text": {"template": "{lang} {n}"}}, ["url"]),
        ({"drop": ("text", "lang", "meta", "n"), "text": {"columns": ["lang", "text"]}}, ["url"]),
        ({"rename": {"text": "raw"}, "text": {"columns": ["lang"]}, "keep": ("text",)}, ["raw"]),
    ],
    ids=str,
)
def test_what_is_stored(two: Path, tmp_path: Path, settings: dict[str, Any], stored: list[str]) -> None:
    result = normalize(tmp_path / "out", two, **settings)
    check_contract(result)
    assert others(result) == stored
    assert result.rows()[0]["source_id"] == "1", "the id is stored whatever is kept"


def test_an_id_that_is_dropped_is_not_stored(path: Path, tmp_path: Path) -> None:
    assert normalize(tmp_path / "out", path, drop=("id",)).rows()[0]["source_id"] is None


def test_parquet_columns_that_nothing_needs_are_not_read(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([RECORD]), tmp_path / "in.parquet")
    (chunk,), _ = read(tmp_path, "in.parquet", keep=("url",), text={"template": "{lang}"}, where="n > 1")
    assert chunk.table.column_names == ["id", "url", "lang", "n"]
    (whole,), _ = read(tmp_path, "in.parquet", transform="a:b", transform_version=1, keep=("url",))
    assert whole.table.column_names == list(RECORD), "a transform may need any column"


def test_documents_stay_documents_whatever_is_kept(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", RECORD, {**RECORD, "id": "2", "text": "v"})
    once = normalize(tmp_path / "once", tmp_path / "in.jsonl")
    again = normalize(tmp_path / "again", f"{once.directory}/data/{SOURCE}/part-*.parquet", keep=("url",))
    assert [(row["id"], row["source_id"], row["url"]) for row in again.rows()] == [
        (row["id"], row["source_id"], row["url"]) for row in once.rows()
    ]
    assert others(again) == ["url"]


def test_a_kept_column_may_have_a_name_of_datakit(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", {"text": "a", "source": "web", "source_id": "s", "x": 1})
    kept = normalize(tmp_path / "kept", tmp_path / "in.jsonl", keep=("source",))
    assert others(kept) == ["upstream_source"]
    renamed = normalize(tmp_path / "renamed", tmp_path / "in.jsonl", keep=("source",), rename={"source": "site"})
    assert others(renamed) == ["site"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rename": {"lang": "url"}}, "rename: 'lang' cannot be named 'url', because the source has another column"),
        ({"rename": {"lng": "x"}}, "rename: no record has the column 'lng'; did you mean 'lang'"),
        ({"keep": ("urll",)}, "keep: no record has the column 'urll'; did you mean 'url'"),
        ({"conflicts": {"mta": "string"}}, "conflicts: no record has the column 'mta'; did you mean 'meta'"),
    ],
)
def test_unknown_and_taken_names_are_errors(path: Path, tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ColumnError) as caught:
        normalize(tmp_path / "out", path, **settings)
    assert message in str(caught.value)


def test_a_choice_without_settings_reads_everything() -> None:
    choice = ColumnChoice(Config())
    assert all(choice.reads(name) and choice.carries(name) and choice.stores(name) for name in RECORD)
    assert wanted_paths(Config()) == []
