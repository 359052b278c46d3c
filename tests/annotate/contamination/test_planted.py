"""Evaluation questions planted in real text are found exactly where a slow search with Python sets finds them."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard

from datakit.annotate.contamination.annotator import ContaminationAnnotator
from datakit.annotate.contamination.config import Config, EvaluationFiles
from tests.support.annotate.contamination_oracle import words_of
from tests.support.data import need_data, texts_of

NGRAM = 13
SETS = ("agi_eval", "gsm8k", "mmlu")


@pytest.fixture(scope="module")
def annotator() -> ContaminationAnnotator:
    folder = need_data() / "evals"
    sets = {name: EvaluationFiles(str(folder / f"{name}_*.jsonl.gz")) for name in SETS}
    return Config(sets, NGRAM, NGRAM, max_hits=10_000).annotator()


def ngrams_of(text: str) -> set[tuple[str, ...]]:
    words = tuple(word for word, _, _ in words_of(text))
    return {words[i : i + NGRAM] for i in range(len(words) - NGRAM + 1)}


def items_of(folder: Path, name: str) -> list[set[tuple[str, ...]]]:
    """The n-grams of all questions of a set; equal questions share one set of n-grams, for speed."""
    known: dict[str, set[tuple[str, ...]]] = {}
    items = []
    for path in sorted(folder.glob(f"{name}_*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                question = json.loads(line)["question"] or ""
                items.append(known.setdefault(question, ngrams_of(question) if question not in known else set()))
    return items


def test_hits_in_planted_documents_are_those_of_a_slow_search(annotator: ContaminationAnnotator) -> None:
    folder = need_data()
    texts = texts_of(folder / "decontamination" / "planted" / "docs.jsonl.zst")[::10]
    where: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for name in SETS:
        for item, ngrams in enumerate(items_of(folder / "evals", name)):
            for ngram in ngrams:
                where.setdefault(ngram, []).append((name, item))
    rows = annotator.annotate(pa.record_batch({"text": pa.array(texts, pa.large_string())})).to_pylist()
    for text, row in zip(texts, rows, strict=True):
        wanted: dict[tuple[str, int], int] = {}
        for ngram in ngrams_of(text) & where.keys():
            for item in where[ngram]:
                wanted[item] = wanted.get(item, 0) + 1
        assert {(hit["set"], hit["item"]): hit["matches"] for hit in row["hits"]} == wanted


def test_every_planted_question_that_survived_is_found(annotator: ContaminationAnnotator) -> None:
    """truth.tsv gives the share of each planted question's 13-grams that is left in its document."""
    folder = need_data() / "decontamination" / "planted"
    with (folder / "truth.tsv").open(encoding="utf-8") as file:
        truth = {row["id"]: float(row["q13_share"]) for row in csv.DictReader(file, delimiter="\t")}

    with zstandard.open(folder / "docs.jsonl.zst", "rt", encoding="utf-8") as lines:
        documents = [json.loads(line) for line in lines]
    texts = pa.array([document["text"] for document in documents], pa.large_string())
    found = annotator.annotate(pa.record_batch({"text": texts}))["items"].is_valid().to_pylist()
    missed = [d["id"] for d, hit in zip(documents, found, strict=True) if truth.get(d["id"], 0) > 0 and not hit]
    assert missed == []
