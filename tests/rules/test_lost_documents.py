"""A document that kills its annotator costs nothing else: rules count it, edits leave it out, and `why` explains it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datakit.annotate import stage
from datakit.api import run
from datakit.cache.reader import open_cache
from datakit.pipeline.fate.fates import why
from datakit.pipeline.rule_effects.effects import SampleOptions, effects
from datakit.pipeline.run_summary import RunResult
from datakit.validate.validation import validate
from tests.support.annotate.rules_inputs import listed
from tests.support.partitions import identity
from tests.support.trees import tree

TEXTS = {
    "a": [f"Letter {n} of {n % 7} by ada{n}@mail.invalid.org, who wrote {'more ' * (n % 5)}words." for n in range(60)],
    "b": [
        f"Letter {n} of {n % 7} by ada{n}@mail.invalid.org, who wrote {'more ' * (n % 5)}words." for n in range(50, 90)
    ],
}
POISON = "This poison by eve@mail.invalid.org kills the annotator."
FAULTS = {
    "crash in C": "ctypes.string_at(0)",
    "exit": "os._exit(0)",
    "hang in C that holds the GIL": "collections.deque(itertools.repeat(0), maxlen=0)",
    "memory": "[bytearray(b'x') * (64 << 20) for _ in itertools.count()]",
    "exception": "raise ValueError('poison')",
}
MODULE = """
import collections, ctypes, itertools, os
import datakit
import pyarrow as pa
import pyarrow.compute as pc


@datakit.annotator(version=1, writes={{"more": pa.int32()}})
def count(batch):
    if any("poison" in text for text in batch["text"].to_pylist()):
        {fault}
    return pa.record_batch({{"more": pc.count_substring(batch["text"], "more").cast(pa.int32())}})
"""
TABLES = """
[annotate]
max_quarantined = 1
[annotate.personal]
[annotate.user.counts]
function = "lost_documents:count"
[[rules]]
name = "three"
where = "counts.more = 3"
[[rules]]
name = "unknown"
where = "counts.more > 9"
missing = {missing}
[[rules]]
name = "mails"
where = "len(personal.spans) > 1"
[select.edits.mail]
spans = "personal.spans"
action = "mask"
replacement = "<EMAIL>"
[dedup]
max_removal = 1.0
[tokenize]
tokenizer = "bytes"
"""


def recipe_with(folder: Path, fault: str, missing: bool = False) -> Path:
    """Write a recipe, its texts, and an annotator that fails on one of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, texts in TEXTS.items():
        every = [*texts, POISON] if name == "a" else texts
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in every))
    (folder / "lost_documents.py").write_text(MODULE.format(fault=fault))
    sources = "".join(f'[[sources]]\nname = "{name}"\nurl = "{name}.jsonl"\n' for name in TEXTS)
    path = folder / "shelf.toml"
    path.write_text(f'name = "shelf"\n{sources}{TABLES.format(missing=str(missing).lower())}')
    return path


def texts_of(result: RunResult) -> dict[str, str]:
    """The text of each document in the token cache."""
    assert result.cache is not None
    return {
        document.id: bytes(token for token in document.tokens.tolist() if token < 256).decode()
        for document in open_cache(result.cache)
    }


def missing_of(dataset: str) -> dict[tuple[str, str], int]:
    return {(one.rule, one.source): one.missing for one in effects(dataset, SampleOptions()).rules if one.missing}


OFTEN = ("crash in C", "hang in C that holds the GIL", "exception")  # the others take long


@pytest.mark.parametrize("fault", [pytest.param(one, marks=() if one in OFTEN else pytest.mark.soak) for one in FAULTS])
def test_only_the_document_at_fault_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The result is that of a run without the document, and the same for any number of workers."""
    if "hang" in fault:
        monkeypatch.setattr(stage, "HANG_SECONDS", 30.0)
    recipe, dataset = recipe_with(tmp_path, FAULTS[fault]), str(tmp_path / "1" / "shelf")
    results = [run(recipe, tmp_path / str(workers), workers=workers) for workers in (1, 4)]
    assert tree(str(tmp_path / "1")) == tree(str(tmp_path / "4"))
    quiet = run(recipe_with(tmp_path / "quiet", "pass"), tmp_path / "quiet" / "root", workers=2)
    expected = {one: text for one, text in texts_of(quiet).items() if one != identity(POISON)}
    assert len(expected) == len(texts_of(quiet)) - 1 > 50
    assert texts_of(results[0]) == expected
    assert missing_of(dataset) == {(rule, "a"): 1 for rule in ("three", "unknown", "mails")}
    (select,) = results[0].steps_of("select")
    left: dict[str, Any] = {row["id"]: row["reasons"] for row in listed(Path(select.directory), "a")}
    assert left[identity(POISON)] == ["unannotated"]
    assert select.manifest.counters["select/dropped_unannotated"] == 1
    assert validate(str(tmp_path / "1")).findings == []
    (found,) = why(dataset, id=identity(POISON)).documents
    told = {one.stage: f"{one.outcome} {one.explanation}" for one in found.stages}
    assert "could not be annotated" in told["select"], told


def test_rule_may_remove_what_could_not_be_annotated(tmp_path: Path) -> None:
    result = run(recipe_with(tmp_path, FAULTS["exception"], missing=True), tmp_path / "root", workers=2)
    (rules,) = result.steps_of("rules")
    assert {row["id"]: row["reason"] for row in listed(Path(rules.directory), "a")}[identity(POISON)] == "rule:unknown"
    (select,) = result.steps_of("select")
    left = {row["id"]: row["reasons"] for row in listed(Path(select.directory), "a")}
    assert left[identity(POISON)] == ["rule:unknown"]
    assert identity(POISON) not in texts_of(result)
    assert validate(str(tmp_path / "root")).findings == []
