"""Rules of a recipe remove documents before duplicates are searched for, and every command knows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.api import run
from datakit.errors import RecipeError
from datakit.pipeline.configuration.configure import configure
from datakit.pipeline.fate.difference import diff
from datakit.pipeline.fate.fates import why
from datakit.recipe import load_recipe
from datakit.validate.validation import validate
from tests.support.annotate.rules_inputs import listed
from tests.support.annotate.rules_recipe import LONG, RULES, SHARED, recipe_with
from tests.support.partitions import identity


def test_removed_documents_take_no_duplicates_with_them(tmp_path: Path) -> None:
    """A text that a rule removes from the first source stays in the second; a text whose longer near duplicate a rule
    removes stays as well.
    """
    result = run(recipe_with(tmp_path), root=tmp_path / "root", workers=2)
    (rules,) = result.steps_of("rules")
    by_rule = {(source, row["id"]): row["reason"] for source in "ab" for row in listed(Path(rules.directory), source)}
    mails = {identity(f"Write to ada@mail.invalid.org {text[::-1]}") for text in SHARED[:3]}
    assert by_rule == {
        **{("a", name): "rule:mail" for name in mails},
        **{("a", identity(text)): "rule:early" for text in SHARED[:5]},
        ("a", identity(LONG)): "rule:long",
    }
    (dedup,) = result.steps_of("dedup")
    assert [row["id"] for row in listed(Path(dedup.directory), "a")] == []
    assert {row["id"] for row in listed(Path(dedup.directory), "b")} == {identity(text) for text in SHARED[5:10]}
    assert result.steps_of("tokenize")[0].manifest.totals.rows == 15 + 1 + 7
    assert validate(str(tmp_path / "root")).findings == []
    text = repr(result)
    assert "5 by rule early" in text and "3 by rule mail" in text


def test_why_and_diff_name_the_rule(tmp_path: Path) -> None:
    run(recipe_with(tmp_path), root=tmp_path / "root", workers=2)
    dataset = str(tmp_path / "root" / "shelf")
    (fate,) = why(dataset, id=identity(LONG)).documents
    assert [(one.outcome, one.explanation) for one in fate.stages if one.stage in ("rules", "dedup", "select")] == [
        ("removed", "by rule long"),
        ("removed", "by rule long"),
    ]
    without = recipe_with(tmp_path, "")
    run(without, root=tmp_path / "other", workers=2)
    found = diff(dataset, str(tmp_path / "other" / "shelf"), lambda done, total, what: None)
    reasons = {(one.source, one.reason): one.documents for one in found.second.absent}
    assert reasons[("a", "rules")] == 3 + 5 + 1


def test_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    caches = []
    for workers in (1, 4):
        cache = run(recipe_with(tmp_path), root=tmp_path / str(workers), workers=workers).cache
        assert cache is not None
        files = sorted(path for path in Path(cache, "data").rglob("*") if path.is_file())
        caches.append({path.relative_to(cache): path.read_bytes() for path in files})
    assert caches[0] == caches[1]


def test_changed_rule_makes_no_text_be_read_again(tmp_path: Path) -> None:
    first = run(recipe_with(tmp_path), root=tmp_path / "root", workers=2)
    changed = recipe_with(tmp_path, RULES.replace("document.n < 5", "document.n < 6"))
    second = run(changed, root=tmp_path / "root", workers=2)
    reused = {step.stage for step in second.steps if step.reused}
    assert reused == {"download", "normalize", "annotate", "signatures", "contract"}
    assert first.cache != second.cache


def test_assignments_change_a_rule(tmp_path: Path) -> None:
    recipe = load_recipe(recipe_with(tmp_path)).with_overrides(["rules.early.where=document.n < 7"])
    assert configure(recipe)["rules"][None].content["rules"][1]["where"] == "document.n < 7"
    with pytest.raises(RecipeError, match="no rule 'erly'; did you mean 'early'"):
        load_recipe(recipe_with(tmp_path)).with_overrides(["rules.erly.where=true"])


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("[[rules]]\nname = 'x'", "rule 'x': the rule has no condition"),
        ("[[rules]]\nname = 'x'\nwhere = 'true'\nactoin = 'drop'", "rule 'x': unknown key 'actoin'"),
        ("[[rules]]\nname = 'x'\nwhere = 'true'\naction = 'drp'", "did you mean 'drop'"),
        ("[[rules]]\nname = 'x'\nwhere = 'true'\n[[rules]]\nname = 'x'\nwhere = 'true'", "two rules are named 'x'"),
        ("[[rules]]\nname = 'x'\nwhere = 'language.score < 1'", r"has no \[annotate.language\]"),
        ("[[rules]]\nname = 'x'\nwhere = 'now() > day'", "rule 'x', where: .*calls now"),
        ("[[rules]]\nname = 'x'\nwhere = 'true'\nsources = ['c']", "rule 'x': no source 'c'"),
        ("[[rules]]\nname = 'x'\nlowest = 0.1", "set `by`"),
        ("[[rules]]\nname = 'x'\nlowest = 1.5\nby = '1'", "lowest is 1.5"),
        ("[[rules]]\nname = 'X y'\nwhere = 'true'", "name is 'X y'"),
    ],
)  # fmt: skip
def test_mistakes_are_found_before_anything_runs(tmp_path: Path, rules: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        configure(load_recipe(recipe_with(tmp_path, rules)))
