"""Measures decontamination: what is found in the planted documents of the test data, by set and by kind of planting;
short passages; CPU seconds with 100,000 items, and with the same input as datatrove; and memory with 1,000,000 items.

    python -m benchmarks.contamination planted short speed memory            # any of these
    python -m benchmarks.contamination peer PYTHON                           # an interpreter that has datatrove

speed: the items are passages of 50 words, from novels, laws and movie reviews; the documents are all other texts. The
figures are medians of five rounds. memory: the items are 50 words drawn at random, so that all n-grams are distinct.
"""

from __future__ import annotations

import csv
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from datakit.annotate.contamination.annotator import ContaminationAnnotator
from datakit.annotate.contamination.config import Config, EvaluationFiles
from datakit.annotate.contamination.evaluation_sets import EvaluationSet, list_files, read_passages
from datakit.errors import InputError
from tests.support.annotate.contamination_oracle import words_of
from tests.support.data import need_data, texts_of
from tests.support.paths import REPOSITORY

NGRAM = 13
SETS = ("agi_eval", "gsm8k", "mmlu")
ITEM_FILES = ("novels-en.jsonl.gz", "laws-de.jsonl.zst", "nltk-movie_reviews.jsonl.gz")
ITEM_WORDS = 50
BATCH = 500  # documents per call
ROUNDS = 5


def annotator_of(items: Sequence[str], folder: Path, min_words: int = 8, min_characters: int = 16, index: str = "") -> (
    ContaminationAnnotator
):  # fmt: skip
    """Return an annotator of one set, whose items are these texts."""
    pq.write_table(pa.table({"text": pa.array(items, pa.large_string())}), folder / "items.parquet")
    sets = {"items": EvaluationFiles(str(folder / "items.parquet"), ("text",))}
    return Config(sets, NGRAM, min_words, min_characters, index_folder=index).annotator()


def rows_of(annotator: ContaminationAnnotator, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the annotator's rows for these texts."""
    return [row for batch in batches_of(texts) for row in annotator.annotate(batch).to_pylist()]


def batches_of(texts: Sequence[str]) -> list[pa.RecordBatch]:
    """Return the texts in batches."""
    array = pa.array(texts, pa.large_string())
    return [pa.record_batch({"text": array.slice(i, BATCH)}) for i in range(0, len(array), BATCH)]


def planted_documents() -> list[dict[str, str]]:
    """Return the documents with planted questions: id and text."""
    path = need_data() / "decontamination" / "planted" / "docs.jsonl.zst"
    with zstandard.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def evaluation_sets() -> tuple[EvaluationSet, ...]:
    """Return the evaluation sets of the test data."""
    folder = need_data() / "evals"
    return tuple(EvaluationSet(name, str(folder / f"{name}_*.jsonl.gz"), ("question", "answer")) for name in SETS)


def ngrams_of(text: str, least: int) -> set[tuple[str, ...]]:
    """Return the 13-grams of a text; a shorter text is one n-gram if it has `least` words."""
    words = tuple(word for word, _, _ in words_of(text))
    if len(words) < NGRAM:
        return {words} if len(words) >= least else set()
    return {words[i : i + NGRAM] for i in range(len(words) - NGRAM + 1)}


def planted() -> None:
    """Compare the hits with those of Python sets, for all documents and items, and count them."""
    sets, documents = evaluation_sets(), planted_documents()
    annotator = Config(
        {one.name: EvaluationFiles(one.path, one.columns) for one in sets}, NGRAM, NGRAM, max_hits=10_000
    ).annotator()
    rows = rows_of(annotator, [document["text"] for document in documents])
    passages = read_passages(sets, [list_files(one) for one in sets])
    unique = {text: ngrams_of(text, NGRAM) for text in set(passages.texts.to_pylist())}
    owners: dict[tuple[str, ...], set[int]] = {}
    for item, text in zip(passages.items.to_pylist(), passages.texts.to_pylist(), strict=True):
        for ngram in unique[text]:
            owners.setdefault(ngram, set()).add(item)
    path = need_data() / "decontamination" / "planted" / "truth.tsv"
    truth = {row["id"]: row for row in csv.DictReader(path.open(encoding="utf-8"), delimiter="\t")}
    firsts = dict(zip(SETS, passages.set_starts[:-1], strict=True))
    pairs: dict[str, Counter[str]] = {name: Counter() for name in SETS}
    kinds: dict[str, Counter[str]] = {}
    for document, row in zip(documents, rows, strict=True):
        wanted = {item for ngram in ngrams_of(document["text"], NGRAM) & owners.keys() for item in owners[ngram]}
        found = {firsts[hit["set"]] + hit["item"] for hit in row["hits"]}
        for name, start, stop in zip(SETS, passages.set_starts[:-1], passages.set_starts[1:], strict=True):
            right, got = ({item for item in some if start <= item < stop} for some in (wanted, found))
            pairs[name].update(found=len(right & got), missed=len(right - got), wrong=len(got - right))
            pairs[name].update(documents=bool(got), documents_missed=bool(right) and not got)
        planting = truth.get(document["id"], {"mode": "not planted", "q13_share": "0"})
        kind = kinds.setdefault(planting["mode"], Counter())
        kind.update(all=1, with_13_gram=float(planting["q13_share"]) > 0, found=bool(found))
    print(f"planted: {len(documents):,} documents, {passages.set_starts[-1]:,} items")
    for name, counts in pairs.items():
        print(f"  {name}: pairs of document and item {dict(counts)}")
    for mode, counts in sorted(kinds.items()):
        print(f"  {mode}: {dict(counts)}")


def short() -> None:
    """Plant the first 8 words of questions in clean documents, verbatim and without punctuation."""
    sets = evaluation_sets()
    passages = read_passages(sets, [list_files(one) for one in sets])
    lines = {}
    for text in passages.texts.to_pylist():
        words = words_of(text)
        if len(words) >= 8:
            lines.setdefault(" ".join(word for word, _, _ in words[:8]), text.encode()[: words[7][2]].decode())
    documents = [d["text"] for d in planted_documents()]
    generator, numbers = np.random.default_rng(0), range(1500)
    items = [[*lines.values()][i] for i in generator.permutation(len(lines))[:1500]]
    hosts = [documents[i].split() for i in numbers]
    verbatim, plain = [], []
    for host, item in zip(hosts, items, strict=True):
        place = int(generator.integers(len(host) + 1))
        lower = " ".join(word for word, _, _ in words_of(item))
        for texts, line in ((verbatim, item), (plain, lower)):
            texts.append(" ".join([*host[:place], line, *host[place:]]))
    with tempfile.TemporaryDirectory() as folder:
        for characters in (24, 16, 0):
            annotator = annotator_of(items, Path(folder), min_characters=characters)
            for name, texts in (("verbatim", verbatim), ("lowercase, no punctuation", plain)):
                rows = rows_of(annotator, texts)
                found = sum(any(hit["item"] == i for hit in row["hits"]) for i, row in enumerate(rows))
                print(f"short, min_characters {characters}, {name}: {found} of {len(items)} lines of 8 words found")
        try:
            annotator_of(items, Path(folder), min_words=NGRAM)
        except InputError:
            print(f"short, min_words {NGRAM}: the set is refused, because none of its {len(items)} lines can be found")
        rows = rows_of(annotator, documents)
        wanted = [" ".join(word for word, _, _ in words_of(item)) for item in items]
        wrong = 0
        for text, row in zip(documents, rows, strict=True):
            if row["hits"]:
                joined = " " + " ".join(word for word, _, _ in words_of(text)) + " "
                wrong += sum(f" {wanted[hit['item']]} " not in joined for hit in row["hits"])
        print(f"short: {wrong} wrong hits in {len(documents):,} documents ({sum(bool(r['hits']) for r in rows)} hit)")


def item_passages(count: int) -> list[str]:
    """Return passages of 50 words from the texts of `ITEM_FILES`, which overlap if there are not enough words."""
    words = [word for name in ITEM_FILES for text in texts_of(need_data() / "text" / name) for word in text.split()]
    step = max(1, (len(words) - ITEM_WORDS) // count)
    return [" ".join(words[i * step : i * step + ITEM_WORDS]) for i in range(count)]


def other_texts() -> list[str]:
    """Return the texts of all other files."""
    paths = sorted((need_data() / "text").glob("*.*"))
    return [text for path in paths if path.name not in ITEM_FILES for text in texts_of(path)]


def median_seconds(work: Callable[[], object]) -> float:
    """Return the median CPU seconds of five rounds, after a first one that is not counted."""
    seconds = []
    for _ in range(ROUNDS + 1):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds[1:])


def speed() -> None:
    """Print megabytes per CPU-second with 100,000 items, without and with short passages."""
    items, texts = item_passages(100_000), other_texts()
    batches = batches_of(texts)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        for name, some in (("no short passages", items), ("10,000 short passages more", [
            *items, *(" ".join(text.split()[:10]) for text in items[::10])])):  # fmt: skip
            annotator = annotator_of(some, Path(folder))
            found = sum(len(batch) - annotator.annotate(batch)["items"].null_count for batch in batches)
            taken = median_seconds(lambda chosen=annotator: [chosen.annotate(batch) for batch in batches])
            print(
                f"speed: {len(some):,} items ({name}), {len(annotator.index.arrays.ngrams.keys):,} n-grams; "
                f"{megabytes:.0f} MB in {len(texts):,} documents, {found} of them hit: {megabytes / taken:.0f} MB per "
                "CPU-second"
            )


def memory() -> None:
    """Print the memory and CPU time to build an index of 1,000,000 items, and to open it in another process."""
    vocabulary = sorted({word for text in texts_of(need_data() / "text" / ITEM_FILES[0])[:20] for word in text.split()})
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=REPOSITORY / ".tmp" if (REPOSITORY / ".tmp").exists() else None) as folder:
        path = Path(folder) / "items.parquet"
        schema = pa.schema([("text", pa.large_string())])
        with pq.ParquetWriter(path, schema) as writer:
            for _ in range(20):
                rows = generator.integers(len(vocabulary), size=(50_000, ITEM_WORDS))
                texts = [" ".join(vocabulary[i] for i in row) for row in rows]
                writer.write_table(pa.table({"text": pa.array(texts, pa.large_string())}, schema))
        for name in ("build", "open"):
            command = [sys.executable, "-m", "benchmarks.contamination", "index", str(path), f"{folder}/index"]
            answer = subprocess.run(command, check=True, capture_output=True, text=True)
            print(f"memory, {name}: {answer.stdout.strip()}")


def open_only(path: str, folder: str) -> None:
    """Open or build an index, and print what it takes."""
    start = time.process_time()
    annotator = Config({"items": EvaluationFiles(path, ("text",))}, index_folder=folder).annotator()
    seconds = time.process_time() - start
    size = sum(file.stat().st_size for file in Path(folder).iterdir())
    shared = psutil.Process().memory_info().shared  # pyright: ignore[reportAttributeAccessIssue] - on Linux
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    ngrams, items = len(annotator.index.arrays.ngrams.keys), annotator.index.set_starts[-1]
    print(
        f"{items:,} items, {ngrams:,} n-grams: file {size / 1e6:.0f} MB, {seconds:.1f} CPU-seconds, peak "
        f"{peak / 1e6:.0f} MB, then resident {psutil.Process().memory_info().rss / 1e6:.0f} MB, of which mapped "
        f"from files {shared / 1e6:.0f} MB"
    )


def peer(python: str) -> None:
    """Compare with datatrove: 10,000 items of 50 words, the same documents, in the same run."""
    items, texts = item_passages(10_000), other_texts()[::8]
    halves = [(text[: len(text) // 2], text[len(text) // 2 :]) for text in texts[:200]]
    texts[:200] = [f"{first} {item} {second}" for (first, second), item in zip(halves, items, strict=False)]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        annotator = annotator_of(items, Path(folder))
        pq.write_table(pa.table({"text": pa.array(texts, pa.large_string())}), Path(folder) / "documents.parquet")
        script = str(Path(__file__).parent / "peers" / "contamination.py")
        command = [python, script, folder, str(NGRAM)]
        answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        batches = batches_of(texts)
        ours = [hit is not None for batch in batches for hit in annotator.annotate(batch)["items"].to_pylist()]
        taken = median_seconds(lambda: [annotator.annotate(batch) for batch in batches])
    found = {i for i, hit in enumerate(ours) if hit}
    theirs = set(answer["found"])
    print(
        f"peer: {megabytes:.1f} MB in {len(texts):,} documents, 200 of them planted. datakit: {megabytes / taken:.0f} "
        f"MB per CPU-second, {len(found)} hit, {len(found & set(range(200)))} of the planted ones; datatrove: "
        f"{megabytes / answer['seconds']:.2f} MB per CPU-second, {len(theirs)} hit, {len(theirs & set(range(200)))} "
        "of the planted ones"
    )


def main() -> None:
    """Run the measurements that the arguments name."""
    if sys.argv[1:2] == ["index"]:
        open_only(sys.argv[2], sys.argv[3])
    elif sys.argv[1:2] == ["peer"]:
        peer(sys.argv[2])
    else:
        measurements = {"planted": planted, "short": short, "speed": speed, "memory": memory}
        for name in sys.argv[1:] or measurements:
            measurements[name]()


if __name__ == "__main__":
    main()
