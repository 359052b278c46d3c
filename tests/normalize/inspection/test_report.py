"""The report of `datakit inspect` on a raw source."""

from __future__ import annotations

import gzip
import json
import tomllib
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from datakit.errors import NoInputError
from datakit.normalize.inspection.draft import draft_recipe
from datakit.normalize.inspection.report import RawReport, inspect_source
from datakit.recipe import parse_recipe
from tests.support.data import need_data
from tests.support.normalize.sources import normalize


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """JSON Lines with an unusual text column, Parquet, Markdown, and a file of unknown format."""
    folder = tmp_path / "mixed-texts"
    (folder / "notes").mkdir(parents=True)
    records = [
        {"uuid": f"u{n}", "body": f"a fairly long secret body {n} " * 9, "title": f"t{n}", "n": n} for n in range(9)
    ]
    lines = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "b.jsonl").write_bytes(lines + b"no record\n")
    pq.write_table(pa.table({"id": [1, 2], "text": ["secret", None], "score": [0.5, 1.0]}), folder / "c.parquet")
    (folder / "notes" / "d.md").write_text("# A secret note")
    (folder / "e.qqq").write_bytes(b"?")
    return folder


def test_report_has_formats_columns_and_guesses(mixed: Path) -> None:
    report = inspect_source(str(mixed))
    assert (report.files, len(report.groups)) == (5, 4)
    json_part, other, parquet, text = report.groups
    assert (json_part.format, json_part.files, json_part.extensions) == ("json", 1, (".jsonl.gz",))
    assert (json_part.text, json_part.id, json_part.records, json_part.unusable) == ("body", "uuid", 9, 0)
    assert (other.name, other.records, other.unusable) == ("mixed-texts-b-json", 9, 1)
    first = "a fairly long secret body 0 " * 9
    assert json_part.sample_ids[0] == xxhash.xxh3_128_hexdigest(first.encode())
    assert json_part.mean_text_bytes == len(first)
    assert [(column.name, column.type, column.filled) for column in parquet.columns] == [
        ("id", "int64", 1.0), ("text", "string", 0.5), ("score", "double", 1.0),
    ]  # fmt: skip
    assert (text.format, text.text, text.files) == ("text", "text", 1)
    assert any("e.qqq" in problem for problem in report.problems)
    assert any("b.jsonl" in problem for problem in report.problems)


def test_report_contains_no_text(mixed: Path) -> None:
    report = inspect_source(str(mixed))
    assert "secret" not in json.dumps(asdict(report)) + draft_recipe(report)


def test_glob_can_be_inspected_and_normalized(mixed: Path, tmp_path: Path) -> None:
    report = inspect_source(f"{mixed}/*.gz")
    recipe = parse_recipe(tomllib.loads(draft_recipe(report)), "draft", tmp_path)
    assert [(source.url, source.include, source.text) for source in recipe.sources] == [(f"{mixed}/*.gz", None, "body")]
    result = normalize(tmp_path, recipe.sources[0].url, text=recipe.sources[0].text, id=recipe.sources[0].id)
    assert sorted(row["source_id"] for row in result.rows()) == [f"u{n}" for n in range(9)]
    assert set(report.groups[0].sample_ids) <= {row["id"] for row in result.rows()}
    with pytest.raises(NoInputError, match="no such file"):
        inspect_source(f"{mixed}/*.parquet.gz")


def test_real_sources_are_recognized() -> None:
    def texts(report: RawReport) -> set[tuple[str, str | None]]:
        return {(part.format, part.text) for part in report.groups}

    assert texts(inspect_source(str(need_data() / "text"))) == {("json", "text"), ("parquet", "text")}
    assert ("json", "question") in texts(inspect_source(str(need_data() / "evals")))


def test_unique_column_named_like_an_id_is_the_id(tmp_path: Path) -> None:
    rows = [f"{n % 2},r{n},{n},some text {n}" for n in range(5)]
    (tmp_path / "reviews.csv").write_text("\n".join(["user_id,review_id,paid,body", *rows]) + "\n")
    (group,) = inspect_source(str(tmp_path / "reviews.csv")).groups
    assert group.id == "review_id", "user_id is not unique, and `paid` is not a kind of id"
