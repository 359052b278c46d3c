"""A recipe names lists, a run counts their entries, and rules and edits use what was found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datakit.api import plan, run
from datakit.errors import ChangedInputError, ColumnError, NoInputError, RecipeError, RefusedError, RefusedInputsError
from datakit.pipeline.configuration.configure import configure
from datakit.pipeline.run_summary import stage_lines
from datakit.recipe import load_recipe, parse_recipe
from datakit.storage.parquet import read_shard

LISTS = """
[annotate.urls.lists.adult]
path = "adult.txt"
[annotate.urls.lists.paths]
path = "paths.txt"
kind = "substrings"
[annotate.words.lists.rude]
path = "rude.txt"
"""
RECORDS = [
    {"url": "https://www.bad.example/x", "text": "a fine text about nothing"},
    {"url": "https://good.example/BUY-now", "text": "Darn it all, this is a DARN long text"},
    {"url": None, "text": "no address at all"},
]


def recipe_of(folder: Path, lists: str = LISTS, more: str = "") -> Path:
    """Write a recipe with these lists, its lists, and three documents."""
    folder.mkdir(exist_ok=True)
    (folder / "docs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    (folder / "adult.txt").write_text("# hosts\nBad.Example\n")
    (folder / "paths.txt").write_text("/buy\n")
    (folder / "rude.txt").write_text("darn\ndarn it\n")
    path = folder / "shelf.toml"
    path.write_text(f'name = "shelf"\n[[sources]]\nname = "docs"\nurl = "docs.jsonl"\n{lists}\n{more}')
    return path


def rows_of(directory: str, table: str) -> list[dict[str, Any]]:
    paths = sorted(Path(directory).glob(f"data/docs/{table}/*"))
    return [row for path in paths for row in read_shard(str(path)).to_pylist()]


def data_of(directory: str) -> dict[str, bytes]:
    data = Path(directory, "data")
    return {str(path.relative_to(data)): path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file()}


def test_run_counts_entries_and_writes_the_same_with_any_number_of_workers(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    results = [run(recipe, root=tmp_path / str(count), workers=count, until="annotate") for count in (1, 2)]
    first, second = (result.steps_of("annotate")[0] for result in results)
    assert data_of(first.directory) == data_of(second.directory) != {}
    found = {(row["adult"], row["paths"]) for row in rows_of(first.directory, "urls")}
    assert found == {(1, 0), (0, 1), (None, None)}
    words = sorted((row["rude"], row["rude_entries"]) for row in rows_of(first.directory, "words"))
    assert words == [(0, 0), (0, 0), (3, 2)]
    (line,) = [line for line in stage_lines(results[0]) if line.stage == "annotate"]
    assert line.found == {
        "urls/adult": 1, "urls/adult_unknown": 1, "urls/paths": 1, "urls/paths_unknown": 1, "words/rude": 1,
    }  # fmt: skip


def test_rules_and_edits_use_what_was_found(tmp_path: Path) -> None:
    more = (
        '[[rules]]\nname = "adult"\nwhere = "urls.adult > 0"\n'
        '[select.edits.rude]\nspans = "words.spans"\nkinds = ["rude"]\naction = "mask"\nreplacement = "***"\n'
    )
    result = run(recipe_of(tmp_path, more=more), root=tmp_path / "root", workers=1, until="consolidate")
    (step,) = result.steps_of("consolidate")
    paths = [path for path in Path(step.directory).rglob("*.parquet") if "data" in path.parts]
    texts = sorted(row["text"] for path in paths for row in read_shard(str(path)).to_pylist())
    assert texts == ["*** all, this is a *** long text", "no address at all"]


def test_edit_of_an_unknown_list_is_refused(tmp_path: Path) -> None:
    more = '[select.edits.rude]\nspans = "words.spans"\nkinds = ["rudes"]\naction = "mask"\nreplacement = "x"\n'
    with pytest.raises(RecipeError, match=r"kinds: \[annotate.words\] has no 'rudes'; did you mean 'rude'"):
        configure(load_recipe(recipe_of(tmp_path, more=more)))


def test_moved_lists_change_no_fingerprint_and_changed_lists_do(tmp_path: Path) -> None:
    contents = []
    for name in ("a", "b", "c"):
        recipe = recipe_of(tmp_path / name)
        if name == "c":
            (tmp_path / "c" / "rude.txt").write_text("heck\n")
        contents.append(configure(load_recipe(recipe))["annotate"]["docs"].content["annotators"])
    assert contents[0] == contents[1] != contents[2]
    assert str(tmp_path) not in json.dumps(contents)


@pytest.mark.parametrize("command", [plan, run])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rude.txt", b"", r"\[annotate.words.lists.rude\]: .*rude.txt has no entries"),
        ("rude.txt", b"a\nA\n", r"\[annotate.words.lists.rude\]: .*line 2 has the same entry"),
        ("paths.txt", b"\xff", r"\[annotate.urls.lists.paths\]: .*line 1 is not valid UTF-8"),
        ("adult.txt", b"a/b", r"\[annotate.urls.lists.adult\]: .*line 1: not a domain"),
    ],
)
def test_unusable_lists_are_refused_before_any_stage(
    tmp_path: Path, command: Any, name: str, content: bytes, message: str
) -> None:
    recipe = recipe_of(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RefusedError, match=message):
        command(recipe, tmp_path / "root")
    assert not list((tmp_path / "root").rglob("manifest.json"))


def test_unusable_lists_of_both_annotators_are_reported_together(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    for name in ("rude.txt", "adult.txt"):
        (tmp_path / name).write_text("")
    with pytest.raises(RefusedInputsError) as caught:
        plan(recipe, tmp_path / "root")
    assert len(caught.value.messages) == 2


def test_missing_and_changed_lists_are_refused(tmp_path: Path) -> None:
    lists = LISTS.replace('path = "rude.txt"', f'path = "rude.txt"\nsha256 = "{"0" * 64}"')
    with pytest.raises(ChangedInputError, match=r"rude.txt is [0-9a-f]{64}, but 0{64} is expected"):
        plan(recipe_of(tmp_path, lists), tmp_path / "root")
    (tmp_path / "rude.txt").unlink()
    with pytest.raises(NoInputError, match="no file matches"):
        plan(tmp_path / "shelf.toml", tmp_path / "root")


def test_finished_steps_need_no_usable_list(tmp_path: Path) -> None:
    """The hash of a list is part of the fingerprint, so only an unchanged list is not read again."""
    recipe = recipe_of(tmp_path)
    first = run(recipe, root=tmp_path / "root", workers=1, until="annotate")
    again = run(recipe, root=tmp_path / "root", workers=1, until="annotate")
    assert [step.directory for step in again.steps] == [step.directory for step in first.steps]


def test_source_without_the_column_is_refused(tmp_path: Path) -> None:
    lists = LISTS.replace(
        "[annotate.urls.lists.adult]", '[annotate.urls]\ncolumn = "link"\n[annotate.urls.lists.adult]'
    )
    with pytest.raises(ColumnError, match=r"annotator 'urls' reads the column 'link', which .* does not have"):
        run(recipe_of(tmp_path, lists), root=tmp_path / "root", workers=1, until="annotate")


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"words": {}}, "'lists' is missing"),
        ({"words": {"lists": {}}}, "there are 0 lists"),
        ({"words": {"lists": {"a-b": {"path": "x"}}}}, "'a-b' cannot be a column"),
        (
            {"words": {"lists": {"a": {"path": "x"}, "A": {"path": "x"}}}},
            "'A' gives the column 'a', as does the list 'a'",
        ),
        ({"words": {"lists": {"spans": {"path": "x"}}}}, "gives the column 'spans'"),
        ({"words": {"lists": {"a": {"path": "x"}, "a_share": {"path": "x"}}}}, "gives the column 'a_share', as does"),
        ({"words": {"lists": {"a": {"path": "x", "kind": "domains"}}}}, "kind is 'domains'"),
        ({"words": {"lists": {"a": {"path": ""}}}}, "path is empty"),
        ({"words": {"lists": {"a": {"path": "x", "sha256": "1"}}}}, "sha256 is '1'"),
        ({"words": {"lists": {"a": {"path": "x", "knd": "words"}}}}, "unknown key 'knd'; did you mean 'kind'"),
        ({"urls": {"lists": {"a": {"path": "x", "kind": "words"}}}}, "kind is 'words'"),
        ({"urls": {"lists": {"a": {"path": "x"}}, "column": ""}}, "column is empty"),
    ],
    ids=str,
)
def test_mistakes_are_refused(table: dict[str, Any], problem: str) -> None:
    document = {"name": "x", "sources": [{"name": "a", "url": "/x"}], "annotate": table}
    with pytest.raises(RecipeError, match=problem):
        configure(parse_recipe(document, "example", Path("/")))
