"""The paragraphs that Dolma's deduper marks in its own tests are those that a search for lines marks. A Dolma paragraph
is what lies between two newlines. Two differences remain, and these tests state them.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec

from datakit.passages.config import SearchConfig
from datakit.passages.stage import NAME, plan
from datakit.storage.parquet import read_shard
from tests.support.data import need_data
from tests.support.engine.inline import run_plan_inline
from tests.support.partitions import normalized, step

Spans = list[tuple[int, int]]
SEARCH = SearchConfig("line", min_bytes=1, ignore=())
LAST = "http://advocatesaz.org/tag/good-cholesterol/"


def lines_of(path: str) -> list[dict[str, Any]]:
    with gzip.open(need_data() / "dolma-tests" / path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def expected(name: str) -> dict[str, list[tuple[int, int, float]]]:
    """The spans in characters that Dolma expects, with its scores, by document."""
    rows = lines_of(f"expected/{name}.json.gz")
    return {row["id"]: [tuple(span) for span in row["attributes"]["bff_duplicate_paragraph_spans"]] for row in rows}


def found(root: Path, documents: list[dict[str, Any]]) -> dict[str, Spans]:
    """The spans in characters. Each document is a source of its own, since Dolma keeps the first copy in file order."""
    inputs = [normalized(root / "n", f"s{number}", [one["text"]]) for number, one in enumerate(documents)]
    made = step(root / "out", NAME, inputs, searches={"lines": msgspec.to_builtins(SEARCH)}, drop=[])
    output = run_plan_inline(plan(made), str(root / "out"))[0]
    spans: dict[str, Spans] = {}
    for part, document in zip(output.partitions, documents, strict=True):
        data, rows = document["text"].encode(), read_shard(str(root / "out" / part.path)).to_pylist()
        places = [(one["start"], one["stop"]) for row in rows for one in row["lines"]]
        spans[document["id"]] = [(len(data[:start].decode()), len(data[:stop].decode())) for start, stop in places]
    return spans


def test_paragraphs_are_those_of_dolma(tmp_path: Path) -> None:
    documents = lines_of("provided/deduper/documents/000.json.gz")
    wanted = {
        name: [(start, stop) for start, stop, _ in spans] for name, spans in expected("dedupe-paragraphs").items()
    }
    text = next(one["text"] for one in documents if one["id"] == LAST)
    assert wanted[LAST][-1] == (5788, len(text) + 1)  # Dolma compares characters with bytes there
    wanted[LAST][-1] = (5788, len(text))
    assert sum(map(len, wanted.values())) == 43
    assert found(tmp_path, documents) == wanted


def test_near_copies_of_paragraphs_are_not_marked(tmp_path: Path) -> None:
    documents = lines_of("provided/deduper/documents/000.json.gz")
    by_ngrams = expected("dedupe-paragraph-ngrams")
    near = [span for spans in by_ngrams.values() for span in spans if span[2] < 1]
    assert [span[:2] for span in near] == [(3207, 3907)]  # 87 % of its n-grams occurred before
    exact = {name: [span[:2] for span in spans if span[2] == 1] for name, spans in by_ngrams.items()}
    exact[LAST][-1] = (5788, 5835)
    assert found(tmp_path, documents) == exact
