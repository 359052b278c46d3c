"""A preview states what a run would do, and writes nothing into the root."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from datakit.api import run
from datakit.errors import EmptyStageError, NotFoundError, UsageError
from datakit.pipeline.rule_effects.effects import SampleOptions, effects
from datakit.pipeline.rule_effects.preview import preview
from datakit.recipe import load_recipe
from tests.support.annotate.rules_recipe import recipe_with


def files(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file()}


def test_preview_equals_the_run_that_follows(tmp_path: Path) -> None:
    recipe, root = recipe_with(tmp_path), tmp_path / "root"
    run(recipe, root=root, workers=2, until="annotate")
    before = files(root)
    options = SampleOptions(5, show_text=True)
    found = preview(load_recipe(recipe), str(root), options, workers=1)
    assert files(root) == before
    run(recipe, root=root, workers=2)
    done = effects(str(root / "shelf"), options)
    assert [replace(one, tokens=None) for one in done.rules] == list(found.rules)
    assert replace(done, rules=(), step="", retained={}) == replace(found, rules=())


def test_rules_that_remove_all_documents_are_shown_although_a_run_refuses_them(tmp_path: Path) -> None:
    rules = "[annotate.personal]\n[[rules]]\nname = 'all'\nwhere = 'document.n >= 0'\n"
    recipe, root = recipe_with(tmp_path, rules), tmp_path / "root"
    run(recipe, root=root, workers=2, until="annotate")
    found = preview(load_recipe(recipe), str(root), SampleOptions(1), workers=1)
    assert found.leaving == found.documents == {"a": 25, "b": 12}
    assert [(one.rule, one.source, one.decides) for one in found.rules] == [("all", "a", 25), ("all", "b", 12)]
    with pytest.raises(EmptyStageError, match="remove all 37 documents; `datakit rules preview`"):
        run(recipe, root=root, workers=2)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    recipe, root = recipe_with(tmp_path), tmp_path / "root"
    with pytest.raises(NotFoundError, match=r"normalize a is not finished .* --until normalize"):
        preview(load_recipe(recipe), str(root), SampleOptions())
    run(recipe, root=root, workers=2, until="normalize")
    with pytest.raises(NotFoundError, match=r"annotate a is not finished .* --until annotate"):
        preview(load_recipe(recipe), str(root), SampleOptions())
    with pytest.raises(UsageError, match="has no rules"):
        preview(load_recipe(recipe_with(tmp_path, "")), str(root), SampleOptions())
