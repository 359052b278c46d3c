"""Names of annotators and of their columns are checked before anything runs, as far as settings declare them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from datakit.annotate.classifier.linear_classifier import SCHEMA as LINEAR
from datakit.annotate.contamination.annotator import SCHEMA as CONTAMINATION
from datakit.annotate.language.identification import COLUMNS, TOP
from datakit.annotate.language.script import SCHEMA as SCRIPT
from datakit.annotate.personal.annotator import SCHEMA as PERSONAL
from datakit.annotate.tables import TABLES
from datakit.api import plan
from datakit.errors import RecipeError
from datakit.pipeline.graph import build
from datakit.pipeline.resolve_sources import ListingOptions
from datakit.recipe import load_recipe

SERVER = """
[annotate.model_server.quality]
url = "https://models.invalid.org/v1"
model = "judge"
prompt = "Rate it.\\n\\n{text}"
number = [0, 5]
"""
USER = """
[annotate.user.marks]
function = "mine:marks"
"""
FUNCTION = """
import pyarrow as pa
from datakit import annotator

@annotator(version=1, reads=["text"], writes={"count": pa.int64(), "parts": pa.list_(pa.int64())})
def marks(batch):
    return batch
"""
BUCKET = "[[select.buckets]]\nname = 'x'\nwhere = \"{}\"\n"
RULE = "[[select.rules]]\nname = 'x'\nwhere = \"{}\"\n"


def recipe_with(folder: Path, tables: str, prefer: str = "longest") -> Path:
    (folder / "a.jsonl").write_text('{"text": "one", "meta.score": 1}\n')
    (folder / "mine.py").write_text(FUNCTION)
    path = folder / "shelf.toml"
    head = f'name = "shelf"\n[[sources]]\nname = "a"\nurl = "a.jsonl"\n[dedup]\nprefer = ["{prefer}"]\n'
    path.write_text(head + tables + '[tokenize]\ntokenizer = "bytes"\n')
    return path


@pytest.mark.parametrize(
    ("prefer", "message"),
    [
        ("score:qualty.score", "no annotator 'qualty'; did you mean 'quality'"),
        ("score:mraks.count", "no annotator 'mraks'; did you mean 'marks'"),
        ("score:scrpt.share", "no annotator 'scrpt'; did you mean 'script'"),
        ("score:quality.scroe", "no column 'scroe'; did you mean 'score'"),
        ("score:marks.cuont", "no column 'cuont'; did you mean 'count'"),
        ("score:script.shaer", "no column 'shaer'; did you mean 'share'"),
        ("score:language.score", r"no \[annotate.language\]; add it"),
    ],
)
def test_prefer_names_an_annotator_of_the_recipe(tmp_path: Path, prefer: str, message: str) -> None:
    path = recipe_with(tmp_path, SERVER + USER + "[annotate.script]\n", prefer)
    with pytest.raises(RecipeError, match=message):
        plan(path, root=tmp_path / "root")


@pytest.mark.parametrize(
    ("prefer", "read"), [("score:quality.score", True), ("score:marks.count", True), ("score:meta.score", False)]
)
def test_dedup_reads_annotators_only_if_prefer_names_one(tmp_path: Path, prefer: str, read: bool) -> None:
    recipe = load_recipe(recipe_with(tmp_path, SERVER + USER, prefer))
    graph = build(recipe, str(tmp_path / "root"), ListingOptions(dry_run=True))
    (dedup,) = [node for node in graph.nodes if node.stage == "dedup"]
    assert ("annotate" in [above.stage for above in dedup.upstream]) == read


@pytest.mark.parametrize("table", [RULE, BUCKET])
@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("quality.scroe > 1", "'x': the annotator 'quality' has no column 'scroe'; did you mean 'score'"),
        ("marks.cuont > 1", "did you mean 'count'"),
        ("language.scroe > 0.5", "did you mean 'score'"),
        ("len(personal.spnas) > 0", "did you mean 'spans'"),
    ],
)
def test_final_rules_and_buckets_read_columns_that_annotators_write(
    tmp_path: Path, table: str, where: str, message: str
) -> None:
    tables = SERVER + USER + "[annotate.language]\n[annotate.personal]\n" + table.format(where)
    with pytest.raises(RecipeError, match=message):
        plan(recipe_with(tmp_path, tables), root=tmp_path / "root")


EARLY = "[[rules]]\nname = 'x'\nwhere = \"{}\"\n"


@pytest.mark.parametrize("table", [EARLY, RULE, BUCKET])
@pytest.mark.parametrize(
    "where",
    [
        "source = 'novles'", "'novles' <> source", "source IN ('novels', 'novles')", "NOT source NOT IN ('novles')",
        "document.n > 1 OR (source = 'novels' AND source IS DISTINCT FROM 'novles')",
    ],
)  # fmt: skip
def test_source_of_a_comparison_is_one_of_the_recipe(tmp_path: Path, table: str, where: str) -> None:
    path = recipe_with(tmp_path, table.format(where))
    path.write_text(path.read_text().replace('name = "a"', 'name = "novels"'))
    message = "'x': .* compares source with 'novles', but no source is named so; did you mean 'novels'"
    with pytest.raises(RecipeError, match=message):
        plan(path, root=tmp_path / "root")


@pytest.mark.parametrize("table", [EARLY, RULE, BUCKET])
@pytest.mark.parametrize(
    "where",
    ["source = 'a'", "source IN ('a')", "source LIKE 'b%'", "starts_with(source, 'b')", "lower(document.source) = 'b'"],
)
def test_other_conditions_on_the_source_are_accepted(tmp_path: Path, table: str, where: str) -> None:
    assert plan(recipe_with(tmp_path, table.format(where)), root=tmp_path / "root").steps


def test_columns_of_kinds_and_of_known_annotators_are_accepted(tmp_path: Path) -> None:
    where = (
        "list_contains(personal.spans_kinds, 'email') OR marks.count > 1 OR quality.score > 1 OR len(marks.parts) > 1"
    )
    tables = SERVER + USER + "[annotate.personal]\n" + RULE.format(where)
    assert plan(recipe_with(tmp_path, tables), root=tmp_path / "root").steps


def test_declared_columns_are_those_of_the_annotators() -> None:
    schemas: dict[str, Any] = {
        "language": pa.schema([*COLUMNS, TOP]), "script": SCRIPT, "personal": PERSONAL, "contamination": CONTAMINATION,
        "classifier_linear": LINEAR,
    }  # fmt: skip
    declared = {name: list(table.columns) for name, table in TABLES.items() if table.columns}
    assert declared == {name: schema.names for name, schema in schemas.items()}
