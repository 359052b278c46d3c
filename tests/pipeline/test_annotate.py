"""A recipe chooses annotators, and a run writes their tables and keeps them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from datakit.annotate.language.builtin_model import builtin_path
from datakit.api import ls, run
from datakit.errors import RecipeError
from datakit.pipeline.configuration.configure import configure
from datakit.recipe import load_recipe, parse_recipe
from datakit.retention.reachability import reachability
from datakit.storage.parquet import read_shard
from datakit.validate.validation import validate

TEXTS = [f"Letter {number} from Ada.\n\nWrite to ada{number}@mail.invalid.org" for number in range(30)]


def recipe_with(tmp_path: Path, tables: str) -> Path:
    """Write a recipe whose [annotate] has these subtables, and its texts."""
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    path = tmp_path / "shelf.toml"
    path.write_text(
        'name = "shelf"\n[[sources]]\nname = "letters"\nurl = "texts.jsonl"\n'
        f'{tables}\n[tokenize]\ntokenizer = "bytes"\n'
    )
    return path


def rows(directory: str, table: str) -> list[dict[str, Any]]:
    return [
        row
        for path in sorted(Path(directory).glob(f"data/letters/{table}/*"))
        for row in read_shard(str(path)).to_pylist()
    ]


def data_of(directory: str) -> dict[str, bytes]:
    data = Path(directory, "data")
    return {str(path.relative_to(data)): path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file()}


def test_run_writes_the_tables_and_keeps_them(tmp_path: Path) -> None:
    recipe = recipe_with(tmp_path, '[annotate.script]\n[annotate.personal]\nkinds = ["email"]')
    result = run(recipe, root=tmp_path / "root", workers=2)
    (step,) = result.steps_of("annotate")
    assert len(rows(step.directory, "script")) == len(TEXTS)
    assert {span["kind"] for row in rows(step.directory, "personal") for span in row["spans"]} == {"email"}
    states = {one.stage: one.state for one in ls(tmp_path / "root").steps}
    assert states["annotate"] == "current"
    assert reachability(str(tmp_path / "root")).unreachable() == []
    assert validate(str(tmp_path / "root")).findings == []


def test_tables_are_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    recipe = recipe_with(tmp_path, "[annotate.script]\n[annotate.personal]")
    found = [run(recipe, root=tmp_path / str(workers), workers=workers).steps_of("annotate")[0] for workers in (1, 3)]
    assert data_of(found[0].directory) == data_of(found[1].directory) != {}


def test_moved_model_changes_no_fingerprint(tmp_path: Path) -> None:
    """Its sha256 stands for it. The path is relative to the recipe."""
    configurations = []
    for name in ("a.ftz", "b.ftz"):
        shutil.copy(builtin_path(), tmp_path / name)
        table = f'[annotate.language]\nmodel = "{name}"\nsha256 = "{"0" * 64}"'
        configurations.append(configure(load_recipe(recipe_with(tmp_path, table)))["annotate"]["letters"])
    first, second = configurations
    assert first.content == second.content and "model" not in first.content["annotators"]["language"]
    assert first.operations["models"] == {"language": str(tmp_path / "a.ftz")}


@pytest.mark.parametrize(
    ("annotate", "problem"),
    [
        ({}, "no annotator is chosen"),
        ({"langauge": {}}, "langauge"),
        ({"language": True}, r"\[annotate.language\] must be a table"),
        ({"language": {"topk": 2}}, "topk"),
        ({"language": {"top_k": 0}}, r"\[annotate.language\].*top_k is 0"),
        ({"personal": {"kinds": ["mail"]}}, r"\[annotate.personal\].*mail"),
        ({"script": {}, "enabled": 1}, "enabled must be true or false"),
    ],
    ids=str,
)
def test_mistakes_are_refused(annotate: dict[str, Any], problem: str) -> None:
    document = {"name": "x", "sources": [{"name": "a", "url": "/x"}], "annotate": annotate}
    with pytest.raises(RecipeError, match=problem):
        configure(parse_recipe(document, "example", Path("/")))


def test_disabled_table_leaves_the_stage_out() -> None:
    document = {"name": "x", "sources": [{"name": "a", "url": "/x"}], "annotate": {"script": {}, "enabled": False}}
    assert "annotate" not in configure(parse_recipe(document, "example", Path("/")))
