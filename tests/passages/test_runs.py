"""Copies that a recipe searches for are cut or masked in the token cache and in the consolidated dataset, byte by byte,
and every command knows the step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datakit.api import plan, run, why
from datakit.cache.reader import open_cache
from datakit.errors import RecipeError
from datakit.pipeline.run_summary import RunResult, stage_lines
from datakit.retention.reachability import reachability
from datakit.storage.parquet import read_shard
from datakit.validate.validation import validate
from tests.support.passages.reference import expected
from tests.support.passages.shelf import SEARCHES, TABLES, TEXTS, recipe_with
from tests.support.trees import tree


def rows(directory: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of all Parquet files of a step, by source and id."""
    return {
        (path.parent.name, row["id"]): row
        for path in sorted(Path(directory).glob("data/*/*.parquet"))
        for row in read_shard(str(path)).to_pylist()
    }


def directory_of(result: RunResult, stage: str) -> str:
    (found,) = result.steps_of(stage)
    return found.directory


def edited(text: str, cut: list[tuple[int, int]], masked: list[tuple[int, int]]) -> str:
    """Edit a text in plain Python: what a cut span touches is cut, and the other spans are masked."""
    stretches: list[list[Any]] = []
    for start, stop, verb in sorted([(*one, "cut") for one in cut] + [(*one, "mask") for one in masked]):
        if stretches and start < stretches[-1][1]:
            stretches[-1][1] = max(stretches[-1][1], stop)
            stretches[-1][2] = "cut" if "cut" in (verb, stretches[-1][2]) else "mask"
        else:
            stretches.append([start, stop, verb])
    data = text.encode()
    for start, stop, verb in reversed(stretches):
        data = data[:start] + (b"<GLEICH>\n" if verb == "mask" else b"") + data[stop:]
    return data.decode()


def test_copies_are_edited_byte_by_byte(tmp_path: Path) -> None:
    result = run(recipe_with(tmp_path, TABLES), root=tmp_path / "root", workers=2)
    found = rows(directory_of(result, "passages"))
    for name, search in SEARCHES.items():
        wanted = expected(TEXTS, search)
        assert wanted
        assert {key: [(one["start"], one["stop"]) for one in row[name]] for key, row in found.items() if row[name]} == (
            wanted
        )
    lines, paragraphs = (expected(TEXTS, SEARCHES[name]) for name in ("lines", "paragraphs"))
    texts = {
        (str(step.source), name): row["text"]
        for step in result.steps_of("normalize")
        for (_, name), row in rows(step.directory).items()
    }
    wanted = {
        key: edited(text, lines.get(key, []), paragraphs.get(key, []) if key[0] == "books" else [])
        for key, text in texts.items()
    }
    assert {key: row["text"] for key, row in rows(directory_of(result, "consolidate")).items()} == wanted
    assert result.cache is not None
    assert sorted(
        bytes(token for token in one.tokens.tolist() if token < 256).decode() for one in open_cache(result.cache)
    ) == sorted(wanted.values())
    assert sum("🍪" in text for text in wanted.values()) == 1
    assert sum("<GLEICH>" in text for text in wanted.values()) >= 19
    report = validate(str(tmp_path / "root"))
    assert [str(finding) for finding in report.findings] == []
    (line,) = [one for one in stage_lines(result) if one.stage == "passages"]
    assert line.found == {f"copies of {name}": sum(map(len, expected(TEXTS, one).values())) for name, one in
                          SEARCHES.items()}  # fmt: skip
    (source, name), _ = max(lines.items(), key=lambda item: len(item[1]))
    (fate,) = why(tmp_path / "root" / "shelf", id=name).documents
    assert source == fate.source
    explanation = next(one.explanation for one in fate.stages if one.stage == "passages")
    assert f"{len(lines[source, name])} cop" in explanation


def test_output_does_not_depend_on_workers(tmp_path: Path) -> None:
    recipe = recipe_with(tmp_path, TABLES)
    for workers in (1, 4):
        run(recipe, root=tmp_path / f"root{workers}", workers=workers)
    assert tree(str(tmp_path / "root1")) == tree(str(tmp_path / "root4"))


def test_step_depends_on_what_leaves_and_on_nothing_else(tmp_path: Path) -> None:
    recipe = recipe_with(tmp_path, TABLES)

    def directory(*settings: str) -> str:
        planned = plan(recipe, root=tmp_path / "root", settings=settings)
        return next(step.directory for step in planned.steps if step.stage == "passages")

    assert directory() == directory("select.edits.boilerplate.action=cut")
    assert directory() != directory('select.drop=["exact"]')
    assert directory() != directory("passages.lines.keep=2")


def test_copies_that_no_edit_uses_are_kept_by_gc(tmp_path: Path) -> None:
    tables = '[passages.lines]\nunit = "line"\n'
    (directory,) = (
        step.directory
        for step in run(recipe_with(tmp_path, tables), root=tmp_path / "root", workers=2).steps
        if step.stage == "passages"
    )
    needed = reachability(str(tmp_path / "root")).needed
    assert f"shelf/{Path(directory).name}" in needed
    report = validate(str(tmp_path / "root" / "shelf"))
    assert [str(finding) for finding in report.findings] == []
    assert directory in [one.directory for one in report.steps]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('[passages.lines]\nunit = "word"', "unknown unit 'word'"),
        ("[passages.lines]\n", "'unit' is missing"),
        ('[passages.Lines]\nunit = "line"', "the name of a search must begin"),
        ('[passages.id]\nunit = "line"', "cannot be 'id'"),
        ("[passages]\n", "there is no search"),
        ('[passages.lines]\nunit = "line"\nkeep = 0', "keep = 0 marks every copy"),
        ('[passages.parts]\nunit = "substring"\nignore = []', "min_bytes is missing"),
        ('[passages.parts]\nunit = "substring"\nmin_bytes = 31\nignore = []', "it must be 32 to 32768"),
        ('[passages.parts]\nunit = "substring"\nmin_bytes = 40000\nignore = []', "it must be 32 to 32768"),
        ('[passages.parts]\nunit = "substring"\nmin_bytes = 99', "set ignore = []"),
        ('[passages.parts]\nunit = "substring"\nmin_bytes = 99\nignore = []\nmin_words = 2', "remove min_words"),
        ('[passages.parts]\nunit = "substring"\nmin_bytes = 99\nignore = []\nkeep = 2', "remove keep and above"),
        ('[passages.lines]\nunit = "line"\nignore = ["cases"]', "did you mean 'case'"),
        ('[passages.lines]\nunit = "line"\nshortest = 3', "unknown key 'shortest'"),
        ('[select.edits.x]\nspans = "passages.lines"\naction = "cut"', "has no table [passages.lines]; add it"),
        (
            '[passages.lines]\nunit = "line"\n[select.edits.x]\nspans = "passages.line"\naction = "cut"',
            "did you mean 'passages.lines'",
        ),
        (
            '[passages.lines]\nunit = "line"\n[select.edits.x]\nspans = "passages.lines"\nkinds = ["word"]\n'
            'action = "cut"',
            "has no 'word'",
        ),
    ],
)
def test_mistakes_are_refused(tmp_path: Path, table: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        plan(recipe_with(tmp_path, table), root=tmp_path / "root")
    assert message in str(error.value)
