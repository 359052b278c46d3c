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
    assert "a: 9 of 25 documents leave (36.0%)" in out and LONG[:20] not in out and "according to" in err
    assert max(map(len, out.splitlines())) <= 80
    out, _ = shown("rules", "show", f"{root}/shelf", "--samples", "1", "--rule", "long", "--show-text")
    assert LONG[:20] in out
    changed = ("--set", "rules.early.where=document.n < 2")
    out, err = shown("rules", "preview", str(recipe), "--root", root, *changed, "--json")
    decides = {(one["rule"], one["source"]): one["decides"] for one in json.loads(out)["rules"]}
    assert decides[("early", "a")] == 2
    out, err = shown("rules", "preview", str(recipe), "--root", root, *changed)
    assert "nothing was written; next: datakit run" in err
