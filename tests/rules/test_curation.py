"""A recipe with annotators, rules, edits and dedup gives the same bytes for any number of workers. `validate` finds
what was changed, and `why` explains every document.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import datakit
from datakit.pipeline.fate.fates import why
from datakit.pipeline.rule_effects.effects import SampleOptions, effects
from datakit.pipeline.run_summary import RunResult
from datakit.storage.parquet import read_shard
from datakit.validate.validation import validate
from tests.support.annotate.curated_shelf import RULES, write_curated_shelf
from tests.support.annotate.rules_inputs import listed
from tests.support.trees import tree
from tests.support.validate.damage import Change, at, column, table, without

SELECTION, EDITS = "shelf/select-*/data/modules/*.parquet", "shelf/select-*/edits/modules/*.parquet"


@pytest.fixture(scope="module")
def curated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResult]:
    """A finished run with one worker: the folder of the recipe and the root, and the result."""
    folder = tmp_path_factory.mktemp("curated")
    return folder, datakit.run(write_curated_shelf(folder / "shelf"), folder / "root", workers=1)


def fates(folder: Path, source: str, name: str) -> dict[str, str]:
    """The state of a document of a source in each stage."""
    (found,) = (one for one in why(str(folder / "root" / "shelf"), id=name).documents if one.source == source)
    return {one.stage: f"{one.outcome} {one.explanation}".strip() for one in found.stages}


def rows(result: RunResult, stage: str, source: str) -> list[dict[str, Any]]:
    (step,) = result.steps_of(stage)
    return listed(Path(step.directory), source)


def edits(result: RunResult, source: str) -> list[dict[str, Any]]:
    (step,) = result.steps_of("select")
    paths = sorted(Path(step.directory, "edits", source).glob("*.parquet"))
    return [row for path in paths for row in read_shard(str(path)).to_pylist()]


def test_four_workers_write_the_same_bytes(curated: tuple[Path, RunResult]) -> None:
    folder, _ = curated
    datakit.run(folder / "shelf" / "shelf-3.toml", folder / "four", workers=4)
    assert tree(str(folder / "four")) == tree(str(folder / "root"))


def test_every_part_takes_place_and_is_valid(curated: tuple[Path, RunResult]) -> None:
    folder, result = curated
    decided: dict[str, int] = dict.fromkeys(RULES, 0)
    for effect in effects(str(folder / "root" / "shelf"), SampleOptions()).rules:
        decided[effect.rule] += effect.decides
    assert 0 not in decided.values(), decided
    counters = result.steps_of("select")[0].manifest.counters
    assert counters["select/edits/mail"] and counters["select/edits/quiz"] and counters["select/dropped_fuzzy"]
    report = validate(str(folder / "root"), deep=True)
    assert [str(finding) for finding in report.findings] == []
    made = {(step.stage, one.check) for step in report.steps for one in step.results if one.amounts}
    assert {("rules", "alignment"), ("select", "alignment"), ("select", "edits")} <= made, sorted(made)


CHANGES: dict[str, tuple[Change, str, str]] = {
    "an edit is not listed": (table(EDITS, without(0)), "edits", "does not list the edits that follow"),
    "a stretch is replaced by another text": (
        table(EDITS, column("stretches", at(0, lambda old: [{**old[0], "replacement": "x"}, *old[1:]]))),
        "edits",
        "does not list the edits that follow",
    ),
    "a document that a rule removes is not listed": (
        table(SELECTION, without(0)), "alignment", "does not match what its inputs mark",
    ),
    "another reason is given": (
        table(SELECTION, column("reasons", at(0, ["rule:kept"]))), "alignment", "gives different reasons",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_changed_lists_are_found(curated: tuple[Path, RunResult], tmp_path: Path, name: str) -> None:
    change, check, difference = CHANGES[name]
    root = Path(shutil.copytree(curated[0] / "root", tmp_path / "root"))
    change(root)
    found = [str(one) for one in validate(str(root)).findings if one.check == check and difference in one.difference]
    assert found, [str(one) for one in validate(str(root)).findings]


def test_why_tells_how_a_text_was_edited(curated: tuple[Path, RunResult]) -> None:
    folder, result = curated
    changed = edits(result, "modules")
    assert {one["edit"] for row in changed for one in row["stretches"]} == {"mail", "quiz"}
    for row in changed[:5]:
        told = fates(folder, "modules", row["id"])["select"]
        for name, verb in (("mail", "masked"), ("quiz", "cut")):
            count = sum(one["edit"] == name for one in row["stretches"])
            words = f"{count} stretch{'es' if count > 1 else ''} {verb} by {name}"
            assert (words in told) == bool(count), told


@pytest.mark.parametrize("source", ["modules", "pages", "mixed"])
def test_why_gives_every_reason_of_every_document_that_leaves(curated: tuple[Path, RunResult], source: str) -> None:
    folder, result = curated
    leaving = {row["id"]: row["reasons"] for row in rows(result, "select", source)}
    by_rule = {row["id"]: row["reasons"] for row in rows(result, "rules", source)}
    assert {name for name, reasons in leaving.items() if reasons[0].startswith("rule:")} == by_rule.keys()
    assert len(leaving) > 5
    for name, reasons in leaving.items():
        told = fates(folder, source, name)
        for reason in reasons:
            words = f"by rule {reason.removeprefix('rule:')}" if name in by_rule else f"({reason} duplicate)"
            assert words in told["select"] and told["select"].startswith("removed"), told
        for reason in by_rule.get(name, ()):
            assert reason.removeprefix("rule:") in told["rules"], told
