"""`datakit rules` prints the counts of each rule, and texts only if asked."""

from __future__ import annotations

import json
from pathlib import Path

from datakit.api import run
from tests.support.annotate.rules_recipe import LONG, recipe_with
from tests.support.command_line import invoke
from tests.support.paths import REPOSITORY


def shown(*words: str) -> tuple[str, str]:
    """Run a command; return its stdout and stderr."""
    found = invoke(*words, cwd=REPOSITORY, COLUMNS="80")
    assert found.returncode == 0, found.stderr
    return found.stdout, found.stderr


def test_show_and_preview(tmp_path: Path) -> None:
    recipe, root = recipe_with(tmp_path), str(tmp_path / "root")
    run(recipe, root=root, workers=2)
    out, err = shown("rules", "show", f"{root}/shelf", "--samples", "1")
    assert LONG[:20] not in out and "according to" in err
    by_source = out.partition("\n\n")[2].splitlines()
    assert by_source[0].split() == ["source", "documents", "by", "rules", "otherwise", "retained", "text", "tokens"]
    assert by_source[1].split()[:5] == ["a", "25", "9", "0", "16"]
    assert by_source[2].split()[:5] == ["b", "12", "0", "5", "7"]
    assert max(map(len, out.splitlines())) <= 80
    out, _ = shown("rules", "show", f"{root}/shelf", "--samples", "1", "--rule", "long", "--show-text")
    assert LONG[:20] in out
    changed = ("--set", "rules.early.where=document.n < 2")
    out, err = shown("rules", "preview", str(recipe), "--root", root, *changed, "--json")
    decides = {(one["rule"], one["source"]): one["decides"] for one in json.loads(out)["rules"]}
    assert decides[("early", "a")] == 2
    out, err = shown("rules", "preview", str(recipe), "--root", root, *changed)
    assert "a: 6 of 25 documents leave (24.0%)" in out and "retained" not in out
    assert "nothing was written; next: datakit run" in err


def test_run_names_a_source_of_which_nothing_stays(tmp_path: Path) -> None:
    rules = "[annotate.personal]\n[[rules]]\nname = 'all_of_b'\nwhere = 'true'\nsources = ['b']\n"
    recipe, root = recipe_with(tmp_path, rules), str(tmp_path / "root")
    out, _ = shown("run", str(recipe), "--root", root, "--until", "select")
    assert [line for line in out.splitlines() if line.startswith("source ")] == [
        "source b: none of its 12 documents stays (12 rule:all_of_b)"
    ]
