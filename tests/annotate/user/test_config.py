"""All that a function declares enters the fingerprint, and mistakes are found before anything runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from datakit.annotate.user import config
from datakit.errors import RecipeError
from datakit.pipeline.configuration.configure import configure
from datakit.pipeline.configuration.settings import Settings
from datakit.recipe import load_recipe, parse_recipe

MODULE = """
import datakit
import pyarrow as pa

@datakit.annotator(version={version}, writes={{"{column}": pa.int64()}})
def bangs(batch, mark="!", least=1):
    return batch

def undeclared(batch):
    return batch
"""


def settings(folder: Path, code: str, table: str = "") -> Settings:
    """Write a module and a recipe with the annotator [annotate.user.quality]; return the settings of annotate."""
    (folder / "bang_module.py").write_text(code)
    recipe = folder / "shelf.toml"
    table = table or 'function = "bang_module:bangs"'
    recipe.write_text(f'name = "shelf"\n[[sources]]\nname = "a"\nurl = "a.jsonl"\n[annotate.user.quality]\n{table}\n')
    return configure(load_recipe(recipe))["annotate"]["a"]


def version_of(found: Settings) -> int:
    return found.content["annotators"]["quality"]["version"]


def test_everything_declared_enters_the_fingerprint(tmp_path: Path) -> None:
    code = MODULE.format(version=1, column="n")
    found = settings(tmp_path, code).content["annotators"]
    assert found == {
        "quality": {
            "name": "quality", "function": "bang_module:bangs", "version": 1, "columns": ["text"],
            "schema": "n: int64", "sparse": False, "parameters": {"mark": "!", "least": 1},
        }
    }  # fmt: skip
    assert settings(tmp_path, MODULE.format(version=2, column="n")).content["annotators"]["quality"]["version"] == 2
    assert (
        settings(tmp_path, MODULE.format(version=1, column="m")).content["annotators"]["quality"]["schema"]
        == "m: int64"
    )
    changed = settings(tmp_path, code, 'function = "bang_module:bangs"\nparameters = { mark = "?" }').content
    assert changed["annotators"]["quality"]["parameters"] == {"mark": "?", "least": 1}


def test_a_comment_changes_no_fingerprint_but_the_hash_of_the_code(tmp_path: Path) -> None:
    code = MODULE.format(version=1, column="n")
    first, second = settings(tmp_path, code), settings(tmp_path, code + "# a comment\n")
    assert first.content == second.content
    sources = [one.operations["paths"]["quality"]["source"] for one in (first, second)]
    assert sources[0] != sources[1]
    assert str(tmp_path) not in json.dumps(first.content)


def test_the_module_is_not_imported_by_this_process(tmp_path: Path) -> None:
    settings(tmp_path, MODULE.format(version=1, column="n"))
    assert "bang_module" not in sys.modules


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os; os._exit(0)", r"\(exit code 0\)"),
        ("import os; os.abort()", r"\(signal 6\)"),
        ("import time; time.sleep(1000)", "has not ended after 3 s"),
        ("raise ValueError('wrong')", "ValueError: wrong"),
        ("def bangs(batch): return batch", "is not declared as an annotator; decorate it"),
        ("import datakit\n@datakit.annotator(version=0, writes={})\ndef bangs(batch): ...", "version is 0"),
        ("def bngs(batch): ...", "has no function 'bangs'; did you mean 'bngs'"),
    ],
    ids=["exit", "abort", "hang", "exception", "undeclared", "wrong declaration", "misspelled"],
)
def test_modules_that_cannot_be_used_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    monkeypatch.setattr(config, "DESCRIBE_SECONDS", 3.0)
    with pytest.raises(RecipeError, match=r"\[annotate.user.quality\](.|\n)*" + reason):
        settings(tmp_path, code)


def test_what_a_module_prints_does_no_harm(tmp_path: Path) -> None:
    code = "print('{}')\nimport atexit, threading, time\nthreading.Thread(target=time.sleep, args=[99]).start()\n"
    assert (
        settings(tmp_path, code + MODULE.format(version=7, column="n")).content["annotators"]["quality"]["version"] == 7
    )


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('function = "bang_module:bangs"\nparameters = { marc = "?" }', "no parameter 'marc'; did you mean 'mark'"),
        ('function = "bang_module:bangs"\nparameters = { mark = 2 }', "parameter 'mark' must be a text"),
        ('function = "bang_module:bangs"\nparameters = { least = true }', "parameter 'least' must be a number"),
        ('function = "no_such_module_here:bangs"', "there is no module 'no_such_module_here' in"),
        ('function = "bang_module"', "must have the form package.module:function"),
        ('function = "bang_module:bangs"\nversion = 1', "unknown key 'version'"),
    ],
)
def test_mistakes_in_the_table_are_refused(tmp_path: Path, table: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        settings(tmp_path, MODULE.format(version=1, column="n"), table)


@pytest.mark.parametrize(
    ("user", "problem"),
    [
        (True, r"\[annotate.user\] must be a table"),
        ({"quality": "a:b"}, r"\[annotate.user.quality\] must be a table"),
        ({"language": {"function": "a:b"}}, "a built-in annotator has this name"),
        ({"../x": {"function": "a:b"}}, "use letters a-z"),
        ({"a.b": {"function": "a:b"}}, "use letters a-z"),
        ({}, "no annotator is chosen"),
    ],
    ids=str,
)
def test_wrong_tables_are_refused(user: Any, problem: str) -> None:
    document = {"name": "x", "sources": [{"name": "a", "url": "/x"}], "annotate": {"user": user}}
    with pytest.raises(RecipeError, match=problem):
        configure(parse_recipe(document, "example", Path("/")))
