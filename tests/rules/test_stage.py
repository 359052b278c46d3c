"""Rules list exactly the documents that they remove, with all reasons, whatever the partitions."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.engine.task import Output, QuarantinedRecord, StepInput
from datakit.errors import ColumnError, CorruptError, EmptyStageError, RecipeError
from datakit.rules.stage import NAME, plan
from datakit.storage.manifest import Quarantine
from datakit.storage.parquet import read_shard
from tests.support.annotate.rules_inputs import annotated, listed
from tests.support.engine.inline import run_plan_inline
from tests.support.partitions import identity, normalized, step

TEXTS = [f"text {number} " + "x" * number for number in range(60)]
SCORES = [number * 7 % 10 / 10 for number in range(60)]  # six documents have each score
QUALITY = {
    text: {"score": score, "words": number} for number, (text, score) in enumerate(zip(TEXTS, SCORES, strict=True))
}


def apply(root: Path, inputs: Sequence[StepInput], *rules: dict[str, Any]) -> Output:
    output, _ = run_plan_inline(plan(step(root / "out", NAME, inputs, rules=list(rules))), str(root / "out"))
    return output


def shelf(root: Path, bits: int = 0, tables: dict[str, Any] | None = None) -> list[StepInput]:
    """One source of 60 documents with attributes."""
    source = normalized(root / "n", "novels", TEXTS, bits, {"n": list(range(60))})
    return [source, annotated(root / "a", source, {"quality": QUALITY} if tables is None else tables)]


def removed(root: Path, source: str = "novels") -> set[str]:
    """The texts that the rules remove."""
    names = {identity(text): text for text in TEXTS}
    return {names[row["id"]] for row in listed(root / "out", source)}


def test_first_rule_decides_and_all_reasons_are_listed(tmp_path: Path) -> None:
    output = apply(
        tmp_path, shelf(tmp_path, bits=1),
        {"name": "first", "where": "document.n = 7", "action": "keep"},
        {"name": "low", "where": "quality.score < 0.2"},
        {"name": "short", "where": "quality.words < 10"},
    )  # fmt: skip
    low = {text for number, text in enumerate(TEXTS) if SCORES[number] < 0.2 and number != 7}
    short = {text for number, text in enumerate(TEXTS) if number < 10 and number != 7}
    assert removed(tmp_path) == low | short
    for row in listed(tmp_path / "out", "novels"):
        text = next(text for text in TEXTS if identity(text) == row["id"])
        reasons = [f"rule:{name}" for name, texts in (("low", low), ("short", short)) if text in texts]
        assert (row["reason"], row["reasons"]) == (reasons[0], reasons)
    counts = output.details["sources"]["novels"]["rules"]
    assert counts["first"]["decides"] == counts["first"]["applies"] == 1
    assert counts["low"]["decides"] == len(low)
    assert counts["short"]["decides"] == len(short - low)
    assert counts["short"]["applies"] == 10  # including the document that is protected
    assert counts["short"]["text_bytes"] == sum(len(text.encode()) for text in short - low)
    assert output.details["sources"]["novels"]["leaving"] == len(low | short)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 99),
    st.sampled_from(["lowest", "highest"]),
    st.integers(0, 3),
    st.sampled_from(["", "document.n < 40"]),
)
def test_share_is_exact_with_ids_as_tie_break(percent: int, which: str, bits: int, where: str) -> None:
    population = [number for number in range(60) if not where or number < 40]
    order = sorted(population, key=lambda number: (SCORES[number], identity(TEXTS[number])))
    size = percent * len(population) // 100
    expected = order[:size] if which == "lowest" else order[len(order) - size :]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rule = {"name": "share", which: percent / 100, "by": "quality.score", "where": where}
        apply(root, shelf(root, bits), rule)
        assert removed(root) == {TEXTS[number] for number in expected}


def test_share_spans_all_sources_of_the_rule(tmp_path: Path) -> None:
    halves = {"novels": TEXTS[:30], "laws": TEXTS[30:50], "web": TEXTS[50:]}
    sources = [normalized(tmp_path / "n", name, texts, 1) for name, texts in halves.items()]
    tables = [annotated(tmp_path / "a" / str(one.source), one, {"quality": QUALITY}) for one in sources]
    rule = {"name": "share", "lowest": 0.5, "by": "quality.score", "sources": ["novels", "laws"]}
    apply(tmp_path, [*sources, *tables], rule)
    order = sorted(range(50), key=lambda number: (SCORES[number], identity(TEXTS[number])))
    found = removed(tmp_path) | removed(tmp_path, "laws")
    assert found == {TEXTS[number] for number in order[:25]} and not removed(tmp_path, "web")


def test_missing_attributes_are_counted_and_decided_as_the_rule_says(tmp_path: Path) -> None:
    known = {text: facts for text, facts in QUALITY.items() if facts["words"] % 3}
    known[TEXTS[1]] = {"score": float("nan"), "words": None}
    rules = [
        {"name": "low", "where": "quality.score < 0.2"},
        {"name": "words", "where": "quality.words < 0", "missing": True},
        {"name": "ranked", "lowest": 0.01, "by": "quality.score"},
    ]
    counts = apply(tmp_path, shelf(tmp_path, 1, {"quality": known}), *rules).details["sources"]["novels"]["rules"]
    assert [counts[name]["missing"] for name in ("low", "words", "ranked")] == [20, 21, 21]
    low = {text for text, facts in known.items() if facts["score"] < 0.2}
    assert removed(tmp_path) == low | {TEXTS[1]} | {text for text in TEXTS if text not in known}


def test_document_without_spans_has_an_empty_list_unless_it_is_in_quarantine(tmp_path: Path) -> None:
    spans = {TEXTS[4]: {"spans": [{"start": 0, "stop": 3, "kind": "email"}, {"start": 1, "stop": 2, "kind": "ip"}]}}
    source, tables = shelf(tmp_path, 1, {"personal": spans})
    quarantined = with_quarantine(tables, source, TEXTS[9])
    counts = apply(
        tmp_path, [source, quarantined],
        {"name": "mail", "where": "list_contains(personal.spans_kinds, 'email')"},
        {"name": "some", "where": "len(personal.spans) > 0"},
    ).details["sources"]["novels"]["rules"]  # fmt: skip
    assert removed(tmp_path) == {TEXTS[4]}
    assert [counts[name]["missing"] for name in ("mail", "some")] == [1, 1]


def with_quarantine(tables: StepInput, source: StepInput, text: str) -> StepInput:
    """The annotate step as if a document were in its quarantine."""
    for part in source.manifest.partitions:
        ids = read_shard(f"{source.directory}/{part.path}", ["id"])["id"].to_pylist()
        if identity(text) in ids:
            record = QuarantinedRecord(part.path, ids.index(identity(text)), "it killed its worker")
            place = Path(tables.directory, "quarantine", "records.jsonl")
            place.parent.mkdir()
            place.write_bytes(msgspec.json.Encoder().encode_lines([record]))
    return replace(tables, manifest=msgspec.structs.replace(tables.manifest, quarantine=Quarantine(1)))


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"where": "quality.scores < 1"}, "quality.scores.*has only score, words"),
        ({"where": "qualty.score < 1"}, "did you mean 'quality'"),
        ({"where": "document.m < 1"}, "no source has this column"),
        ({"where": "document.text = 'x'"}, "only annotators read texts"),
        ({"where": "score < 1"}, "name a column of an annotator"),
        ({"where": "random() < 0.5"}, "calls random"),
        ({"where": "quality.words"}, "not a condition"),
        ({"where": "quality.words = 'many'"}, "rule 'x' fails on"),
        ({"lowest": 0.5, "by": "source"}, "not a number"),
        ({"where": "quality.words >= 0"}, "remove all 60 documents"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_mistakes_are_refused(tmp_path: Path, rule: dict[str, Any], problem: str) -> None:
    with pytest.raises((RecipeError, ColumnError, EmptyStageError), match=problem):
        apply(tmp_path, shelf(tmp_path), {"name": "x", **rule})


def test_table_of_other_documents_is_refused(tmp_path: Path) -> None:
    other = normalized(tmp_path / "m", "novels", TEXTS[:50])
    tables = annotated(tmp_path / "a", normalized(tmp_path / "n", "novels", TEXTS), {"quality": QUALITY})
    with pytest.raises(CorruptError, match="which is not in"):
        apply(tmp_path, [other, tables], {"name": "x", "where": "quality.score < 0.1"})
