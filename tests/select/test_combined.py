"""Rules, a rule set, dedup by an annotator's score, passages, edits, final rules, equal texts and document buckets
together give what plain Python computes, and every command states it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import datakit
from datakit.pipeline.fate.fates import why
from datakit.pipeline.rule_effects.effects import SampleOptions, effects
from datakit.report.rules import rules_section
from datakit.report.subject import subject_of
from datakit.storage.parquet import read_shard
from datakit.storage.selection.leaving_rows import FINAL, RULE
from datakit.validate.validation import validate
from tests.support.annotate.combined_shelf import BUCKETS, SOURCES, Expected, Text, documents, expected, recipe_with
from tests.support.trees import tree

EXPLANATIONS = {
    "rule:scores.low": "by rule scores.low",
    "rule:scores.worst": "by rule scores.worst",
    "exact": "exact duplicate",
    "fuzzy": "fuzzy duplicate",
    "empty": "nothing is left of its text after editing",
    "final:little": "by final rule little",
    "final:tail": "by final rule tail",
    "equal_after_editing": "its edited text equals that of an earlier document",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[datakit.RunResult]:
    """The recipe run by 1 and by 4 workers."""
    recipe = recipe_with(tmp_path_factory.mktemp("shelf"))
    return [datakit.run(recipe, root=tmp_path_factory.mktemp("root"), workers=workers) for workers in (1, 4)]


@pytest.fixture(scope="module")
def computed() -> Expected:
    return expected()


def rows(result: datakit.RunResult, stage: str, source: str) -> list[dict[str, Any]]:
    (step,) = result.steps_of(stage)
    parts = [part for part in step.manifest.partitions if part.source == source]
    return [row for part in parts for row in read_shard(f"{step.directory}/{part.path}").to_pylist()]


def test_every_reason_and_bucket_occurs(computed: Expected) -> None:
    """Otherwise, the comparison proves nothing for it."""
    assert {reason for reasons in computed.reasons.values() for reason in reasons} == {*EXPLANATIONS}
    assert {*computed.buckets.values()} == {"high", "edited", "rest"}


def test_bytes_do_not_depend_on_the_number_of_workers(results: list[datakit.RunResult]) -> None:
    one, four = (tree(result.root) for result in results)
    assert one == four
    assert validate(results[1].root).findings == []


def test_documents_leave_for_the_computed_reasons(results: list[datakit.RunResult], computed: Expected) -> None:
    """The rules step lists all rules that would have removed a document; select lists the one that did."""
    for source in SOURCES:
        mine = {one.id: reasons for one, reasons in computed.reasons.items() if one.source == source}
        ruled = {name: reasons for name, reasons in mine.items() if reasons[0].startswith(RULE)}
        listed = {row["id"]: (row["reason"], row["reasons"]) for row in rows(results[1], "rules", source)}
        assert listed == {name: (reasons[0], sorted(reasons)) for name, reasons in ruled.items()}
        selected = {row["id"]: sorted(row["reasons"]) for row in rows(results[1], "select", source)}
        assert selected == {name: reasons[:1] if name in ruled else sorted(reasons) for name, reasons in mine.items()}


def test_published_texts_are_the_computed_ones(results: list[datakit.RunResult], computed: Expected) -> None:
    for source in SOURCES:
        found = {row["id"]: (row["text"], row["bucket"]) for row in rows(results[1], "consolidate", source)}
        staying = [one for one in computed.staying() if one.source == source]
        assert found == {one.id: (computed.edited[one], computed.buckets.get(one)) for one in staying}


def test_why_explains_a_document_for_each_reason(results: list[datakit.RunResult], computed: Expected) -> None:
    dataset = f"{results[1].root}/shelf"
    for reason, explanation in EXPLANATIONS.items():
        one = next(one for one, reasons in computed.reasons.items() if reasons[0] == reason)
        fate = next(fate for fate in why(dataset, id=one.id).documents if fate.source == one.source)
        assert explanation in next(stage.explanation for stage in fate.stages if stage.stage == "select"), reason
    for bucket in ("high", "edited", "rest"):
        one = next(one for one, name in computed.buckets.items() if name == bucket)
        fate = next(fate for fate in why(dataset, id=one.id).documents if fate.source == one.source)
        assert any(f"bucket {bucket}" in stage.explanation for stage in fate.stages), [*fate.stages]


def size(texts: set[Text]) -> int:
    return sum(len(one.text.encode()) for one in texts)


def test_counts_are_those_of_plain_python(results: list[datakit.RunResult], computed: Expected) -> None:
    found = effects(f"{results[1].root}/shelf", SampleOptions())
    for effect in found.rules:
        applied, decided = (
            kind.get((effect.source, effect.rule), set()) for kind in (computed.applied, computed.decided)
        )
        removed = decided if effect.action == "drop" else set()
        assert (effect.applies, effect.decides, effect.missing) == (len(applied), len(decided), 0), effect
        assert effect.text_bytes == size(removed), effect
    assert {(effect.source, effect.rule) for effect in found.rules if effect.applies} == {
        key for key, members in computed.applied.items() if members and key[1] not in BUCKETS
    }
    counted = {(one.source, one.bucket): (one.applies, one.documents) for one in found.buckets if one.bucket != "rest"}
    members = Counter((one.source, bucket) for one, bucket in computed.buckets.items())
    assert counted == {
        (source, bucket): (len(computed.applied.get((source, bucket), ())), members[source, bucket])
        for bucket, sources in BUCKETS.items()
        for source in sources
    }
    for source, kept in found.retained.items():
        staying = [computed.edited[one] for one in computed.staying() if one.source == source]
        assert (kept.documents, kept.text_bytes) == (len(staying), sum(len(text.encode()) for text in staying))


def test_report_shows_the_computed_counts(results: list[datakit.RunResult], computed: Expected) -> None:
    (section,) = rules_section(subject_of(f"{results[1].root}/shelf"))
    tables = {figure.id: figure.table for figure in section.figures}
    removed = {(row[0], row[1]): row[5] for row in tables["rules"].rows}
    assert {key: count for key, count in removed.items() if count} == {
        (rule, source): len(members) for (source, rule), members in computed.decided.items() if members
    }
    by_rules = Counter(one.source for one, reasons in computed.reasons.items() if reasons[0].startswith((RULE, FINAL)))
    everything, staying = Counter(one.source for one in documents()), Counter(one.source for one in computed.staying())
    for row in tables["retained"].rows:
        source = str(row[0])
        assert row[1:5] == (
            everything[source], by_rules[source], everything[source] - by_rules[source] - staying[source],
            staying[source],
        )  # fmt: skip
