"""A drafted recipe is complete and runs as it is."""

from __future__ import annotations

import gzip
import json
import random
import tomllib
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import datakit
from datakit.normalize.inspection import sample as sample_module
from datakit.normalize.inspection.draft import draft_recipe
from datakit.normalize.inspection.report import inspect_source
from tests.support.small_shelf import prose, write_lines


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Folders, formats, parts, a broken record, and files that are no data or cannot be read."""
    folder = tmp_path / "my texts"
    for number in range(3):
        write_lines(folder / "web" / f"part-{number:05d}.jsonl", [prose(10 * number + n) for n in range(10)], "content")
    with (folder / "web" / "part-00000.jsonl").open("a") as file:
        file.write("no record\n")
    (folder / "notes").mkdir()
    (folder / "notes" / "one.md").write_text(prose(50))
    (folder / "notes" / "two.txt.gz").write_bytes(gzip.compress(prose(51).encode()))
    pq.write_table(pa.table({"uuid": ["a", "b"], "text": [prose(60), prose(1)]}), folder / "books.parquet")
    (folder / "old.json").write_bytes(b"\xff\xfe{\0}\0\n\0")
    write_lines(folder / "ids" / "numbers.jsonl", [])
    (folder / "ids" / "numbers.jsonl").write_text('{"input_ids": [1, 2]}\n')
    (folder / "slides.pptx").write_bytes(b"?")
    (folder / "my-recipe.toml").touch()
    return folder


def test_draft_runs_through_all_stages(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draft = draft_recipe(inspect_source(texts.name))
    Path("mine.toml").write_text(draft)
    result = datakit.run("mine.toml", "root", workers=2, settings=["tokenize.train.vocabulary=300"])
    cache = datakit.open_cache(str(result.cache))
    assert len(list(cache.documents())) == 33, "30 + 2 + 2 documents, one of them twice"
    document = tomllib.loads(draft)
    assert document["name"] == "my-texts"
    assert [(source["name"], source.get("text"), source.get("id")) for source in document["sources"]] == [
        ("my-texts-parquet", None, "uuid"), ("notes", None, None), ("web", "content", None),
    ]  # fmt: skip
    assert document["normalize"] == {"max_quarantined": 0.1}
    assert document["dedup"]["threshold"] == 0.8
    assert document["tokenize"] == {"tokenizer": "train", "train": {"vocabulary": 32768}}


def test_unusable_groups_are_comments_with_the_reason(texts: Path) -> None:
    draft = draft_recipe(inspect_source(str(texts)))
    assert "# old.json contains UTF-16 text" in draft
    assert "# Each folder, format and pattern of file names has a source of its own" in draft
    assert "# no column of strings was found" in draft
    assert '# include = ["/old.json"]' in draft


def test_draft_of_a_file_is_a_recipe_for_it(texts: Path) -> None:
    report = inspect_source(str(texts / "books.parquet"))
    (source,) = tomllib.loads(draft_recipe(report))["sources"]
    assert source == {"name": "books", "url": str(texts / "books.parquet"), "id": "uuid"}


def test_reserved_name_is_not_drafted(tmp_path: Path) -> None:
    write_lines(tmp_path / "sources" / "a.jsonl", [prose(1)])
    document = tomllib.loads(draft_recipe(inspect_source(str(tmp_path / "sources"))))
    assert document["name"] == "sources-texts"
    assert document["sources"][0]["name"] == "sources"


def test_draft_without_problems_tells_how_to_leave_records_out(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [prose(1)])
    draft = draft_recipe(inspect_source(str(tmp_path / "a.jsonl")))
    assert "normalize" not in tomllib.loads(draft)
    assert "ends with exit code 3" in draft and "# max_quarantined = 0.001" in draft


def test_limit_follows_the_share_of_unusable_records(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [prose(n) for n in range(197)])
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("no record\n" * 3)
    draft = draft_recipe(inspect_source(str(tmp_path / "a.jsonl")))
    assert tomllib.loads(draft)["normalize"] == {"max_quarantined": 0.05}
    assert "# 3 of the sampled records cannot be used" in draft
    assert max(len(line) for line in draft.splitlines() if not line.startswith("url = ")) <= 80


def test_draft_of_a_file_cut_after_its_sample_runs(tmp_path: Path) -> None:
    lines = "".join(f'{{"text": "{random.Random(n).randbytes(300_000).hex()}"}}\n' for n in range(12))
    whole = gzip.compress(lines.encode())
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) * 9 // 10])
    report = inspect_source(str(tmp_path / "cut.jsonl.gz"))
    assert any("the file ends inside the compressed stream" in problem for problem in report.problems)
    (tmp_path / "r.toml").write_text(draft_recipe(report))
    result = datakit.run(tmp_path / "r.toml", tmp_path / "root", workers=1, until="normalize")
    assert result.steps_of("normalize")[0].manifest.quarantine.records == 1
    with patch.object(sample_module, "CHECKED_BYTES", 100):
        assert not inspect_source(str(tmp_path / "cut.jsonl.gz")).problems, "a larger file is sampled only"


def write_forum(path: Path, name: str, others: dict[int, object]) -> None:
    """Write records with a long `Body`, and with strings in the column `name` except in the lines of `others`."""
    records = [{"PostId": n, "Body": prose(n), name: f"{n} {prose(n)}"} for n in range(300)]
    path.write_text("".join(json.dumps(one | {name: others.get(one["PostId"], one[name])}) + "\n" for one in records))


def test_records_whose_text_is_not_a_string_are_counted_as_in_a_run(tmp_path: Path) -> None:
    write_forum(tmp_path / "forum.jsonl", "Body", {70: ["an", "array"], 190: 17})
    report = inspect_source(str(tmp_path / "forum.jsonl"))
    (group,) = report.groups
    assert (group.text, group.records, group.unusable) == ("Body", 298, 2)
    assert [problem.partition(": ")[2] for problem in report.problems] == [
        "'Body' holds a JSON array, not a string (line 71)", "'Body' holds a JSON number, not a string (line 191)",
    ]  # fmt: skip
    (tmp_path / "r.toml").write_text(draft_recipe(report))
    assert tomllib.loads((tmp_path / "r.toml").read_text())["normalize"] == {"max_quarantined": 0.02}
    result = datakit.run(tmp_path / "r.toml", tmp_path / "root", workers=1, until="normalize")
    assert result.steps_of("normalize")[0].manifest.quarantine.records == group.unusable


def test_number_in_the_text_column_is_found_without_an_array(tmp_path: Path) -> None:
    write_forum(tmp_path / "forum.jsonl", "Body", {190: 17})
    assert inspect_source(str(tmp_path / "forum.jsonl")).groups[0].unusable == 1


def test_draft_promises_nothing_if_a_file_cannot_be_read(tmp_path: Path) -> None:
    write_forum(tmp_path / "forum.jsonl", "meta", {70: ["an", "array"]})
    report = inspect_source(str(tmp_path / "forum.jsonl"))
    assert any("drop = ['meta']" in problem for problem in report.problems)
    draft = draft_recipe(report)
    assert "All sampled records can be used" not in draft
    assert "ends with exit code 3" in draft.replace("says so and ends", "ends") and "# max_quarantined = 0.001" in draft
    (tmp_path / "r.toml").write_text(draft)
    assert tomllib.loads(draft)["normalize"] == {"drop": ["meta"]}
    assert tomllib.loads(draft)["sources"][0]["text"] == "Body"
    result = datakit.run(tmp_path / "r.toml", tmp_path / "root", workers=1, until="normalize")
    assert result.steps_of("normalize")[0].manifest.totals.rows == 300
