"""Spans that a user's annotator finds are edited like those of built-in annotators, if they fit their texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import datakit
from datakit.annotate.user.annotator import span_problem
from datakit.api import plan, run
from datakit.cache.reader import open_cache
from datakit.errors import DatakitError, RecipeError, UsageError
from datakit.validate.validation import validate
from tests.support.partitions import identity

TEXTS = [*(f"Brief {n} 日本語 🦉 von {n} 🦉🦉." for n in range(12)), "No owl", "🦉"]
MODULE = """
import datakit
import pyarrow as pa

@datakit.annotator(version=1, writes={{"n": pa.int32(), "owls": datakit.SPANS}}, sparse=True)
def owls(batch):
    found, owl = [], "🦉".encode()
    for text in batch["text"].to_pylist():
        data = text.encode()
        starts = [at for at in range(len(data)) if data[at : at + len(owl)] == owl]
        found.append([{{"start": at, "stop": at + len(owl), "kind": "owl"}} for at in reversed(starts)])
    {change}
    return pa.record_batch({{"n": pa.nulls(len(found), pa.int32()), "owls": pa.array(found, datakit.SPANS)}})
"""
RECIPE = """name = "shelf"
[[sources]]
name = "letters"
url = "letters.jsonl"
[annotate]
max_quarantined = {limit}
[annotate.user.birds]
function = "span_annotators:owls"
[select.edits.owls]
spans = "{spans}"
action = "mask"
replacement = "<É>"
[tokenize]
tokenizer = "bytes"
"""


def recipe_with(folder: Path, change: str = "", spans: str = "birds.owls", limit: int = 0) -> Path:
    """Write a recipe, its texts, and an annotator that runs `change` on the spans that it has found."""
    (folder / "letters.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    (folder / "span_annotators.py").write_text(MODULE.format(change=change or "pass"))
    (folder / "shelf.toml").write_text(RECIPE.format(limit=limit, spans=spans))
    return folder / "shelf.toml"


def encoded(cache: str | None) -> dict[str, str]:
    assert cache is not None
    return {one.id: bytes(token for token in one.tokens.tolist() if token < 256).decode() for one in open_cache(cache)}


def test_spans_in_any_order_are_edited(tmp_path: Path) -> None:
    result = run(recipe_with(tmp_path), tmp_path / "root", workers=2)
    assert encoded(result.cache) == {identity(text): text.replace("🦉", "<É>") for text in TEXTS}
    assert [str(finding) for finding in validate(str(tmp_path / "root")).findings] == []


@pytest.mark.parametrize(
    ("spans", "problem"),
    [
        ([{"start": 0, "stop": 1000, "kind": "owl"}], "outside the text"),
        ([{"start": 0, "stop": 1, "kind": "owl"}], "divides a character"),
        ([{"start": 4, "stop": 4, "kind": "owl"}], "empty"),
        ([{"start": 2**64 - 1, "stop": 4, "kind": "owl"}], "outside"),
        ([{"start": 0, "stop": 4, "kind": None}], "lacks its start, stop or kind"),
        ([None], "null"),
        ([{"start": 0, "stop": 4, "kind": "owl"}, {"start": 0, "stop": 5, "kind": "owl"}], ""),
        (None, ""),
    ],
    ids=str,
)
def test_spans_must_fit_their_texts(spans: Any, problem: str) -> None:
    column = pa.array([[], spans, [{"start": 1, "stop": 3, "kind": "é"}]], datakit.SPANS)
    found = span_problem(pa.array(["", "🦉!", "aé"]), column)
    assert problem in found and bool(problem) == bool(found)


def broken(folder: Path, limit: int) -> Path:
    """Let one document have a span that ends after its text."""
    span = "[{'start': 0, 'stop': 1000, 'kind': 'owl'}]"
    change = f"found = [{span} if text == '🦉' else one for text, one in zip(batch['text'].to_pylist(), found)]"
    return recipe_with(folder, change, limit=limit)


def test_span_that_does_not_fit_its_text_costs_only_this_document(tmp_path: Path) -> None:
    result = run(broken(tmp_path, limit=1), tmp_path / "root", workers=1)
    (step,) = result.steps_of("annotate")
    (record,) = map(json.loads, Path(step.directory, "quarantine", "records.jsonl").read_text().splitlines())
    assert "annotator 'birds' (span_annotators:owls) raised MisplacedSpanError" in record["reason"]
    assert encoded(result.cache) == {identity(text): text.replace("🦉", "<É>") for text in TEXTS if text != "🦉"}


def test_document_and_column_of_a_wrong_span_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatakitError, match=r"part-.*:\d+: annotator 'birds' .* column 'owls' has a span that is empty"):
        run(broken(tmp_path, limit=0), tmp_path / "root", workers=1, until="annotate")


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ("birds.owl", "'birds' has no such column of spans; did you mean 'owls'?"),
        ("birds.n", "'birds' has no such column of spans"),
        ("bird.owls", "unknown spans 'bird.owls'; did you mean 'birds.owls'?"),
    ],
)
def test_wrong_name_is_found_before_anything_runs(tmp_path: Path, spans: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        plan(recipe_with(tmp_path, spans=spans), tmp_path / "root")
    assert message in str(error.value)


def test_annotator_of_spans_must_read_the_text() -> None:
    with pytest.raises(UsageError, match="column 'owls' holds spans of the text, so `reads` must list 'text'"):
        datakit.annotator(version=1, writes={"owls": datakit.SPANS}, reads=["url"])
