"""The section about rules has the counts of the finished steps, and what left and what is retained add up."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.api import run
from datakit.pipeline.rule_effects.effects import SampleOptions, effects
from datakit.report import rules
from datakit.report.page import page_of, render
from datakit.report.rules import rules_section
from datakit.report.subject import subject_of
from tests.support.annotate.rules_recipe import RULES, recipe_with

KEEP = "[[rules]]\nname = 'kept'\nwhere = \"source = 'b'\"\naction = 'keep'\n"


def test_tables_hold_the_counts_of_the_steps(tmp_path: Path) -> None:
    result = run(recipe_with(tmp_path, RULES + KEEP), tmp_path / "root", workers=2)
    dataset = str(tmp_path / "root" / "shelf")
    (section,) = rules_section(subject_of(dataset))
    by_rule, by_source = section.figures
    expected = effects(dataset, SampleOptions())
    assert [tuple(row) for row in by_rule.table.rows] == [
        (one.rule, one.source, one.action, one.applies, one.missing, one.decides, one.text_bytes, one.tokens)
        for one in expected.rules
    ]
    assert by_rule.chart is not None
    drawn = dict(zip(by_rule.chart.data["categories"], by_rule.chart.data["series"][0]["values"], strict=True))
    assert drawn == {"early": 5, "mail": 3, "long": 1}, "a rule that keeps documents removes none"
    for name, documents, *counts in by_source.table.rows:
        kept = expected.retained[str(name)]
        assert counts[2:] == [kept.documents, kept.text_bytes, kept.tokens]
        assert documents == sum(int(count or 0) for count in counts[:3])
    (cache,) = [step.manifest for step in result.steps_of("tokenize")]
    assert by_source.table.total == ("all", 37, 9, 5, 23, cache.totals.text_bytes, cache.totals.tokens)
    assert "Documents removed, by rule" in render(page_of(subject_of(dataset), False))


def test_long_table_is_cut_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MOST_ROWS", 5)
    run(recipe_with(tmp_path), tmp_path / "root", workers=2, until="rules")
    (section,) = rules_section(subject_of(str(tmp_path / "root" / "shelf")))
    (by_rule,) = section.figures
    assert (len(by_rule.table.rows), by_rule.table.more) == (5, "The first 5 of 6 rows.")


def test_dataset_without_rules_has_no_such_section(tmp_path: Path) -> None:
    run(recipe_with(tmp_path, ""), tmp_path / "root", workers=2)
    assert list(rules_section(subject_of(str(tmp_path / "root" / "shelf")))) == []


def test_without_a_token_cache_only_the_removed_documents_are_counted(tmp_path: Path) -> None:
    run(recipe_with(tmp_path), tmp_path / "root", workers=2, until="rules")
    (section,) = rules_section(subject_of(str(tmp_path / "root" / "shelf")))
    (by_rule,) = section.figures
    assert {row[-1] for row in by_rule.table.rows} == {None}


FINAL = """
[[select.rules]]
name = "late"
where = "document.n > 15"
[[select.buckets]]
name = "first"
where = "document.n < 10"
sources = ["a"]
"""


@pytest.mark.parametrize("before", ["", RULES])
def test_final_rules_and_buckets_are_in_the_tables(tmp_path: Path, before: str) -> None:
    run(recipe_with(tmp_path, before + FINAL), tmp_path / "root", workers=2)
    dataset = str(tmp_path / "root" / "shelf")
    (section,) = rules_section(subject_of(dataset))
    by_rule, by_bucket, by_source = section.figures
    expected = effects(dataset, SampleOptions())
    assert [tuple(row)[:2] for row in by_rule.table.rows] == [(one.rule, one.source) for one in expected.rules]
    late = {row[1]: row[5] for row in by_rule.table.rows if row[0] == "late"}
    assert late == {one.source: one.decides for one in expected.rules if one.final}
    assert late["a"] == (5 if before else 8)  # 16 to 19 and the short text; or also the long one and three with mail
    assert [tuple(row) for row in by_bucket.table.rows] == [
        (one.bucket, one.source, one.applies, one.missing, one.documents) for one in expected.buckets
    ]
    assert [row[0] for row in by_bucket.table.rows] == ["first", "rest"]
    removed: dict[str, int] = {}
    for one in expected.rules:
        removed[one.source] = removed.get(one.source, 0) + one.decides
    assert {str(row[0]): row[2] for row in by_source.table.rows} == removed, "final rules count as rules"
    assert "Document buckets by source" in render(page_of(subject_of(dataset), False))


def test_a_dataset_with_buckets_alone_has_the_section(tmp_path: Path) -> None:
    run(recipe_with(tmp_path, FINAL[FINAL.index("[[select.buckets]]") :]), tmp_path / "root", workers=2)
    (section,) = rules_section(subject_of(str(tmp_path / "root" / "shelf")))
    assert [figure.id for figure in section.figures] == ["buckets", "retained"]
