"""A recipe names evaluation sets, and a run reports the documents that contain their items."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from datakit.annotate.contamination.config import Config
from datakit.annotate.input_files import with_paths
from datakit.api import plan, run
from datakit.errors import ChangedInputError, NoInputError, RecipeError, RefusedError
from datakit.pipeline.configuration.configure import configure
from datakit.pipeline.run_summary import stage_lines
from datakit.recipe import load_recipe, parse_recipe
from datakit.storage.fingerprint import config_of
from datakit.storage.parquet import read_shard
from datakit.validate.validation import validate
from tests.support.data import need_data

NAMES = ("agi_eval", "gsm8k", "mmlu")
ITEM = "which of these many evaluation questions would a careful reader recognize again at once"


def recipe_with(folder: Path, url: str, sets: str) -> Path:
    """Write a recipe with these tables of evaluation sets."""
    path = folder / "shelf.toml"
    path.write_text(f'name = "shelf"\n[[sources]]\nname = "docs"\nurl = "{url}"\n[annotate.contamination]\n{sets}')
    return path


def small_recipe(folder: Path, more: str = "") -> Path:
    """Write a recipe with one evaluation set of one item, the item's file, and three documents."""
    folder.mkdir(exist_ok=True)
    texts = ["nothing of this", f"before {ITEM} after", ITEM.upper()]
    (folder / "docs.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "mine.jsonl").write_text(json.dumps({"question": ITEM}) + "\n")
    return recipe_with(folder, "docs.jsonl", f'[annotate.contamination.sets.mine]\npath = "mine.jsonl"\n{more}')


def rows(directory: str) -> dict[str, Any]:
    paths = sorted(Path(directory).glob("data/docs/contamination/*"))
    return {row["id"]: row for path in paths for row in read_shard(str(path)).to_pylist()}


def data_of(directory: str) -> dict[str, bytes]:
    data = Path(directory, "data")
    return {str(path.relative_to(data)): path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file()}


def test_run_finds_all_planted_questions_and_no_others(tmp_path: Path) -> None:
    """A document counts as planted if a 13-gram of its question is left (truth.tsv). Any number of workers writes the
    same bytes.
    """
    folder = need_data()
    planted = folder / "decontamination" / "planted"
    evals = "".join(
        f'[annotate.contamination.sets.{name}]\npath = "{folder}/evals/{name}_*.jsonl.gz"\n'
        'columns = ["question", "answer"]\n'
        for name in NAMES
    )
    recipe = recipe_with(tmp_path, str(planted / "docs.jsonl.zst"), evals)
    results = [run(recipe, root=tmp_path / str(count), workers=count, until="annotate") for count in (1, 3)]
    first, second = (result.steps_of("annotate")[0] for result in results)
    assert data_of(first.directory) == data_of(second.directory) != {}
    with (planted / "truth.tsv").open(encoding="utf-8") as file:
        truth = {row["id"]: row for row in csv.DictReader(file, delimiter="\t")}
    (normalized,) = results[0].steps_of("normalize")
    names = {
        row["id"]: row["source_id"]
        for part in normalized.manifest.partitions
        for row in read_shard(f"{normalized.directory}/{part.path}").to_pylist()
    }
    hit = {names[one] for one in rows(first.directory)}
    complete = {one for one, row in truth.items() if float(row["q13_share"]) > 0}
    assert len(complete) > 1000 and complete <= set(names.values())
    assert complete <= hit, "a planted question was missed"
    assert hit <= truth.keys(), "a document without a planted question was hit"
    assert validate(str(tmp_path / "1")).findings == []


def test_summary_counts_the_documents_of_each_set(tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path, '[annotate.contamination.sets.other]\npath = "other.jsonl"\n')
    (tmp_path / "other.jsonl").write_text(json.dumps({"question": "alpha beta gamma delta " * 4}) + "\n")
    result = run(recipe, root=tmp_path / "root", workers=1, until="annotate")
    (step,) = result.steps_of("annotate")
    assert {name: step.manifest.counters[f"annotate/contamination/{name}"] for name in ("mine", "other")} == {
        "mine": 2,
        "other": 0,
    }
    (line,) = [line for line in stage_lines(result) if line.stage == "annotate"]
    assert line.found == {"contamination/mine": 2, "contamination/other": 0}


def test_items_that_are_too_short_are_counted_once_for_all_sources_and_partitions(tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path, '[annotate.contamination.sets.whole]\npath = "whole.jsonl"\n')
    (tmp_path / "whole.jsonl").write_text(json.dumps({"question": "alpha beta gamma delta " * 4}) + "\n")
    items = [
        ITEM,
        "too short",
        "",
        "?!",
        "seven words are not enough for this",
        "eight words are enough for this set too",
    ]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps({"question": item}) + "\n" for item in items))
    (tmp_path / "more.jsonl").write_text("".join(json.dumps({"text": f"text {n} " * 3000}) + "\n" for n in range(100)))
    more = '[[sources]]\nname = "more"\nurl = "more.jsonl"\n[normalize]\npartition_bytes = 1048576\n'
    recipe.write_text(recipe.read_text().replace("[annotate", f"{more}[annotate", 1))
    result = run(recipe, root=tmp_path / "root", workers=1, until="annotate")
    steps = result.steps_of("annotate")
    assert sorted(len(step.manifest.partitions) > 1 for step in steps) == [False, True]
    for step in steps:
        counters = step.manifest.counters
        assert {name: count for name, count in counters.items() if "evaluation_items" in name} == {
            "annotate/evaluation_items/mine/all": 6, "annotate/evaluation_items/mine/too_short": 4,
            "annotate/evaluation_items/whole/all": 1, "annotate/evaluation_items/whole/too_short": 0,
        }  # fmt: skip
    (line,) = [line for line in stage_lines(result) if line.stage == "annotate"]
    assert line.found == {"contamination/mine": 2, "contamination/whole": 0, "items of mine too short to be found": 4}
    assert validate(str(tmp_path / "root")).findings == []


EDIT = """
[[rules]]
name = "evaluation"
where = "contamination.hits[1].overlap >= 1 AND document.n > 1"
[select.edits.items]
spans = "contamination.spans"
{}
action = "cut"
[tokenize]
tokenizer = "bytes"
"""


def test_matching_words_are_cut_and_rules_read_the_overlap(tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path)
    texts = ["nothing of this", f"before {ITEM} after", f"only {ITEM}", f"left out {ITEM}"]
    lines = [json.dumps({"text": text, "n": n // 3 * 2}) + "\n" for n, text in enumerate(texts)]
    (tmp_path / "docs.jsonl").write_text("".join(lines))
    recipe.write_text(recipe.read_text() + EDIT.format('kinds = ["evaluation"]'))
    result = run(recipe, root=tmp_path / "root", workers=1)
    (step,) = result.steps_of("consolidate")
    paths = sorted(Path(step.directory).glob("data/docs/*.parquet"))
    kept = [text for path in paths for text in read_shard(str(path))["text"].to_pylist()]
    assert sorted(kept) == ["before  after", "nothing of this", "only "]
    assert result.steps_of("select")[0].manifest.counters["select/dropped_rule:evaluation"] == 1
    assert validate(str(tmp_path / "root")).findings == []


def test_unknown_kind_of_an_edit_is_refused(tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path)
    recipe.write_text(recipe.read_text() + EDIT.format('kinds = ["mine"]'))
    with pytest.raises(RecipeError, match=r"\[annotate.contamination\] has no 'mine'; known names are evaluation"):
        configure(load_recipe(recipe))


def test_moved_files_change_no_fingerprint_and_changed_files_do(tmp_path: Path) -> None:
    configurations = []
    for name in ("a", "b", "c"):
        recipe = small_recipe(tmp_path / name)
        if name == "c":
            (tmp_path / "c" / "mine.jsonl").write_text(json.dumps({"question": ITEM + " or not"}) + "\n")
        configurations.append(configure(load_recipe(recipe))["annotate"]["docs"])
    contents = [one.content["annotators"]["contamination"] for one in configurations]
    assert contents[0] == contents[1] != contents[2]
    assert str(tmp_path) not in json.dumps(contents)
    assert configurations[1].operations["paths"]["contamination"]["sets"] == {
        "mine": {"path": str(tmp_path / "b" / "mine.jsonl")}
    }


def test_folder_of_the_index_is_no_part_of_the_fingerprint(tmp_path: Path) -> None:
    path = small_recipe(tmp_path)
    plain = run(path, root=tmp_path / "root", workers=1, until="annotate").steps_of("annotate")[0]
    path.write_text(
        path.read_text().replace("[annotate.contamination]\n", '[annotate.contamination]\nindex_folder = "i"\n')
    )
    again = run(path, root=tmp_path / "other", workers=1, until="annotate").steps_of("annotate")[0]
    assert again.manifest.fingerprint == plain.manifest.fingerprint
    assert data_of(again.directory) == data_of(plain.directory)
    assert [one.suffix for one in (tmp_path / "i").iterdir()] == [".arrow"]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_run_reads_tables(tmp_path: Path, suffix: str) -> None:
    """The fork server that builds the index must not start threads, as readers of such files do by default."""
    recipe = small_recipe(tmp_path)
    table = pa.table({"question": [ITEM]})
    if suffix == ".parquet":
        pq.write_table(table, tmp_path / "mine.parquet")
    else:
        with pa.ipc.new_file(str(tmp_path / "mine.arrow"), table.schema) as writer:
            writer.write_table(table)
    recipe.write_text(recipe.read_text().replace("mine.jsonl", f"mine{suffix}"))
    (step,) = run(recipe, root=tmp_path / "root", workers=1, until="annotate").steps_of("annotate")
    assert len(rows(step.directory)) == 2


def test_order_of_the_sets_has_no_effect(tmp_path: Path) -> None:
    """The fingerprint does not depend on it, so the output must not either."""
    tables = [f'[annotate.contamination.sets.{name}]\npath = "mine.jsonl"\n' for name in ("x", "y")]
    found = []
    for number, ordered in enumerate((tables, tables[::-1])):
        small_recipe(tmp_path / str(number))
        recipe = recipe_with(tmp_path / str(number), "docs.jsonl", "".join(ordered))
        found.append(run(recipe, root=tmp_path / f"root{number}", workers=1, until="annotate").steps_of("annotate")[0])
    assert found[0].manifest.fingerprint == found[1].manifest.fingerprint
    assert data_of(found[0].directory) == data_of(found[1].directory)


def test_missing_and_changed_files_are_refused_before_anything_runs(tmp_path: Path) -> None:
    sha256 = hashlib.sha256((json.dumps({"question": ITEM}) + "\n").encode()).hexdigest()
    recipe = small_recipe(tmp_path, f'sha256 = "{sha256}"\n')
    configure(load_recipe(recipe))
    (tmp_path / "mine.jsonl").write_text("{}\n")
    with pytest.raises(ChangedInputError, match=r"sets\.mine\].*mine\.jsonl is [0-9a-f]{64}, but " + sha256):
        run(recipe, root=tmp_path / "root")
    (tmp_path / "mine.jsonl").unlink()
    with pytest.raises(NoInputError, match=r"\[annotate\.contamination\.sets\.mine\]: no file matches .*mine\.jsonl"):
        run(recipe, root=tmp_path / "root")
    assert not (tmp_path / "root").exists() or not list((tmp_path / "root").rglob("manifest.json"))


MISSPELT = {"question": ITEM, "choices": [{"text": ITEM}], "n": 1}


def write_set(folder: Path, suffix: str, rows: list[dict[str, Any]]) -> None:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    table, path = pa.Table.from_pylist(rows), folder / f"mine{suffix}"
    if suffix == ".parquet":
        pq.write_table(table, path)
    elif suffix == ".arrow":
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    elif suffix == "-stream.arrow":
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table)
    else:
        path.write_bytes({".jsonl": bytes, ".jsonl.gz": gzip.compress, ".jsonl.zst": zstandard.compress}[suffix](data))


@pytest.mark.parametrize("column", ["qestion", "choices.txt", "choices.text.more"])
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow", "-stream.arrow"])
def test_misspelt_column_is_refused_before_anything_runs(tmp_path: Path, suffix: str, column: str) -> None:
    recipe = small_recipe(tmp_path, f'columns = ["question", "choices.text", "{column}"]\n')
    write_set(tmp_path, suffix, [MISSPELT] * 3)
    recipe.write_text(recipe.read_text().replace("mine.jsonl", f"mine{suffix}"))
    for command in (plan, run):
        with pytest.raises(RefusedError, match=rf"shelf.toml, evaluation set 'mine' has no column '{column}'"):
            command(recipe, tmp_path / "root")
    assert not list((tmp_path / "root").rglob("manifest.json"))


def test_column_of_a_late_record_or_of_one_file_only_is_accepted(tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path, 'columns = ["question", "late", "other"]\n')
    recipe.write_text(recipe.read_text().replace("mine.jsonl", "mine*"))
    write_set(tmp_path, ".jsonl", [{"question": ITEM}, {"question": None, "late": [ITEM]}])
    write_set(tmp_path, ".parquet", [{"question": ITEM, "other": ITEM}])
    assert plan(recipe, tmp_path / "root").notes == ()
    (step,) = run(recipe, root=tmp_path / "root", workers=1, until="annotate").steps_of("annotate")
    assert step.manifest.counters["annotate/evaluation_items/mine/all"] == 3


def test_same_content_under_a_pattern_is_hashed_in_the_order_of_the_paths(tmp_path: Path) -> None:
    """The numbers of items depend on this order, so the hash must too."""
    hashes = []
    for first, second in (("a", "b"), ("b", "a")):
        folder = tmp_path / (first + second)
        small_recipe(folder)
        for name, item in ((first, "one"), (second, "two")):
            (folder / f"set-{name}.jsonl").write_text(json.dumps({"question": item}) + "\n")
        tables = '[annotate.contamination.sets.mine]\npath = "set-*.jsonl"\n'
        settings = configure(load_recipe(recipe_with(folder, "docs.jsonl", tables)))["annotate"]["docs"]
        hashes.append(settings.content["annotators"]["contamination"]["sets"]["mine"]["sha256"])
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({}, r"\[annotate.contamination\]: 'sets' is missing"),
        ({"sets": {}}, "sets is empty"),
        ({"sets": {"mine": {}}}, "missing required field `path`"),
        (
            {"sets": {"mine": {"path": "x", "colums": ["a"]}}},
            r"sets.mine\]: unknown key 'colums'; did you mean 'columns'",
        ),
        ({"sets": {"mine": {"path": 1}}}, "Expected `str`, got `int`"),
        ({"sets": ["x.jsonl"]}, "Expected `object`, got `array`"),
        ({"sets": {"mine": {"path": "x"}}, "ngram": 99}, "ngram is 99"),
    ],
    ids=str,
)
def test_mistakes_are_refused(table: dict[str, Any], problem: str) -> None:
    document = {"name": "x", "sources": [{"name": "a", "url": "/x"}], "annotate": {"contamination": table}}
    with pytest.raises(RecipeError, match=problem):
        configure(parse_recipe(document, "example", Path("/")))


def test_file_that_changes_after_planning_is_refused_by_the_task(tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path)
    settings = configure(load_recipe(recipe))["annotate"]["docs"]
    values = settings.content["annotators"]["contamination"]
    shutil.copy(tmp_path / "docs.jsonl", tmp_path / "mine.jsonl")
    config = config_of(with_paths(values, settings.operations["paths"]["contamination"]), Config)
    with pytest.raises(ChangedInputError, match="evaluation set 'mine'"):
        config.annotator()
