"""The recipe's `transform`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import datakit
from datakit.errors import RecipeError, StepFailedError
from datakit.normalize.transform import Transform
from datakit.recipe import parse_recipe
from tests.support.normalize.sources import check_contract, normalize, write_lines


def longer(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that drops a record, adds two, and makes the text from another column."""
    records = [record for record in batch.to_pylist() if record["n"] != 1]
    made = [{"text": f"{record['body']}!", "n": record["n"]} for record in records]
    return pa.RecordBatch.from_pylist([*made, *({"text": f"new {n}", "n": n} for n in range(2))])


def test_transform_changes_records(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", *({"body": f"b{n}", "n": n} for n in range(3)))
    result = normalize(tmp_path, tmp_path / "in.jsonl", transform=f"{__name__}:longer", transform_version=1)
    assert sorted(row["text"] for row in result.rows()) == ["b0!", "b2!", "new 0", "new 1"]
    assert result["transform_added"] == 1
    check_contract(result)


def unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@pytest.mark.parametrize("lines", [1, 5])
def test_ids_keep_their_digits_through_a_transform(tmp_path: Path, lines: int) -> None:
    ids = ["1.50", "7", "0.1234567890123456789012", "18446744073709551616", "true"]
    for number in range(0, 5, lines):
        records = (f'{{"text": "t{value}", "id": {value}}}\n' for value in ids[number : number + lines])
        (tmp_path / f"in/{number}.jsonl").parent.mkdir(exist_ok=True)
        (tmp_path / f"in/{number}.jsonl").write_text("".join(records))
    result = normalize(tmp_path, tmp_path / "in", transform=f"{__name__}:unchanged", transform_version=1)
    assert {row["text"]: row["source_id"] for row in result.rows()} == {f"t{value}": value for value in ids}


def test_fate_of_a_chat_does_not_depend_on_its_neighbors(tmp_path: Path) -> None:
    chats = [[{"role": "user", "content": content}] for content in ("a", 5, None, "b", 1.5, ["part"])]
    settings = {"transform": "datakit.tokenize.chat:with_text", "transform_version": 1, "max_quarantined": 9}
    for name, files in (("together", [chats]), ("alone", [[chat] for chat in chats])):
        for number, records in enumerate(files):
            write_lines(tmp_path / name / f"{number}.jsonl", *({"messages": chat} for chat in records))
        result = normalize(tmp_path / f"{name}-out", tmp_path / name, **settings)
        assert sorted(row["text"] for row in result.rows()) == ['["user", "a"]', '["user", "b"]', '["user", null]']
        assert result["quarantined"] == 3


def misspelled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["bdy"])


def test_failing_transform_shows_its_traceback_and_what_it_received(tmp_path: Path) -> None:
    """Through the pipeline, whose worker processes import the transform."""
    write_lines(tmp_path / "in.jsonl", *({"body": f"secret {n}", "n": n} for n in range(3)))
    source = {"name": "web", "url": str(tmp_path / "in.jsonl"), "transform": f"{__name__}:misspelled"}
    recipe = parse_recipe({"name": "made", "sources": [{**source, "transform_version": 1}]}, "test", tmp_path)
    with pytest.raises(StepFailedError) as caught:
        datakit.run(recipe, root=str(tmp_path / "root"), workers=1)
    said = str(caught.value)
    assert f"transform '{__name__}:misspelled' failed" in said
    assert "a pyarrow.RecordBatch of 1 row with the columns 'body': string, 'n': int64" in said
    assert 'return batch.select(["bdy"])' in said
    assert 'KeyError: Field "bdy" does not exist in schema' in said
    assert "while processing in.jsonl:0" in said, "the second attempt tried the records one by one"
    assert "secret" not in said


def test_transform_whose_module_fails_is_refused_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_filters.py").write_text("words = 5\nwords.split()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RecipeError, match=r"line 2[\s\S]*'int' object has no attribute 'split'"):
        Transform("broken_filters:keep")


KEEP_LONG = """
import pyarrow.compute as pc

import thresholds


def keep_long(batch):
    return batch.filter(pc.greater(pc.utf8_length(batch["text"]), thresholds.LETTERS))
"""


def recipe_with_transform(folder: Path, transform: str) -> Path:
    """Write a recipe and its one source, whose transform may be in a module beside the recipe."""
    write_lines(folder / "in.jsonl", *({"text": f"{n}" * n} for n in range(1, 9)))
    lines = ['name = "made"', "[[sources]]", 'name = "web"', 'url = "in.jsonl"', "transform_version = 1"]
    (folder / "recipe.toml").write_text("\n".join([*lines, f'transform = "{transform}"\n']))
    return folder / "recipe.toml"


def test_transform_beside_the_recipe_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_with_transform(tmp_path / "recipes", "long_texts:keep_long")
    (recipe.parent / "long_texts.py").write_text(KEEP_LONG)
    (recipe.parent / "thresholds.py").write_text("LETTERS = 5")
    (recipe.parent / "random.py").write_text("raise RuntimeError('this file shadows the standard library')")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = datakit.run("../recipes/recipe.toml", root=str(tmp_path / "root"), workers=1)
    assert result.steps_of("consolidate")[0].manifest.totals.rows == 3


def test_transform_without_a_module_names_the_places_searched(tmp_path: Path) -> None:
    recipe = recipe_with_transform(tmp_path, "missing_filters:keep")
    with pytest.raises(RecipeError) as caught:
        datakit.run(recipe, root=tmp_path / "root", workers=1)
    said = str(caught.value)
    assert "there is no module 'missing_filters' in\n  " in said
    assert f"\n  {tmp_path}\n" in said
    assert "put missing_filters.py beside the recipe" in said


def test_misspelled_transform_suggests_the_function_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spelled_filters.py").write_text("def keep_long(batch):\n    return batch\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RecipeError, match="has no function 'keep_lng'; did you mean 'keep_long'"):
        Transform("spelled_filters:keep_lng")


def test_import_that_fails_inside_a_transform_shows_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needy_filters.py").write_text("name = 'not_there'\n__import__(name)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RecipeError, match=r"line 2[\s\S]*No module named 'not_there'"):
        Transform("needy_filters:keep")
