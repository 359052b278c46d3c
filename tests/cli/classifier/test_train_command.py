"""`datakit classifier train` writes a model whose bytes depend on the documents only, and prints how good it is."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datakit.annotate.classifier.linear_model import decoded_model
from datakit.api import run
from datakit.storage.parquet import read_shard
from tests.support.command_line import command, invoke

pytest.importorskip("sklearn")
WORDS = {
    "good": ["theorem", "proof", "lemma", "axiom", "corollary"],
    "bad": ["sale", "offer", "discount", "shipping", "deal"],
}


def texts(kind: str, count: int, words: str = "") -> list[str]:
    """Different documents for each kind and number."""
    return [
        " ".join(random.Random(f"{kind}{number}").choices(WORDS[words or kind] + ["the", "a", "of"], k=30))
        for number in range(count)
    ]  # fmt: skip


def lines(found: list[str]) -> str:
    return "".join(json.dumps({"text": one}) + "\n" for one in found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Positive documents as JSON Lines, and negative ones as Parquet and as compressed JSON Lines."""
    (tmp_path / "good.jsonl").write_text(lines(texts("good", 200)))
    bad = texts("bad", 300)
    pq.write_table(pa.table({"text": bad[:150]}), tmp_path / "bad.parquet")
    (tmp_path / "bad.jsonl.gz").write_bytes(gzip.compress(lines(bad[150:]).encode()))
    return tmp_path


TRAIN = ("classifier", "train", "--positive", "good.jsonl", "--negative", "bad.parquet", "--negative", "bad.jsonl.gz",
         "--bits", "12")  # fmt: skip


def test_same_documents_give_the_same_bytes_in_any_order_and_with_any_threads(folder: Path) -> None:
    first = command(*TRAIN, "--out", "a.linear", cwd=folder, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    assert first.returncode == 0, first.stderr
    (folder / "good.jsonl").write_text(lines(texts("good", 200)[::-1]))
    again = command(*TRAIN, "--out", "b.linear", "--workers", "1", cwd=folder, OPENBLAS_NUM_THREADS="4",
                    OMP_NUM_THREADS="4")  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert (folder / "a.linear").read_bytes() == (folder / "b.linear").read_bytes()


def test_output_names_the_file_its_sha256_and_its_quality(folder: Path) -> None:
    done = invoke(*TRAIN, "--out", "a.linear", "--json", cwd=folder)
    found, data = json.loads(done.stdout), (folder / "a.linear").read_bytes()
    assert found["sha256"] == hashlib.sha256(data).hexdigest()
    assert (found["positive"], found["negative"], found["bits"]) == (200, 300, 12)
    assert found["quality"]["roc_auc"] == decoded_model(data, "a").quality.roc_auc > 0.99
    assert sum(one["documents"] for one in found["quality"]["calibration"]) == found["quality"]["documents"]
    assert found["trained_on"] + found["quality"]["documents"] == 500


def test_printed_table_scores_documents_in_a_recipe(folder: Path) -> None:
    done = invoke(*TRAIN, "--out", "a.linear", cwd=folder)
    assert done.returncode == 0 and "ROC AUC" in done.stdout
    table = done.stdout[done.stdout.index("[annotate.classifier_linear]") :]
    (folder / "new.jsonl").write_text(lines(["theorem lemma proof", "discount offer deal", "..."]))
    recipe = folder / "r.toml"
    recipe.write_text(f'name = "shelf"\n[[sources]]\nname = "new"\nurl = "new.jsonl"\n{table}')
    (step,) = run(recipe, root=folder / "root", until="annotate", workers=1).steps_of("annotate")
    (part,) = step.manifest.partitions
    scores = read_shard(f"{step.directory}/{part.path}")["score"].to_pylist()
    assert sorted(one > 0.5 for one in scores if one is not None) == [False, True] and None in scores


def test_document_of_both_kinds_is_reported(folder: Path) -> None:
    (folder / "more.jsonl").write_text(lines(texts("good", 2)))
    done = invoke(*TRAIN, "--negative", "more.jsonl", "--out", "a.linear", cwd=folder)
    assert done.returncode == 0 and "warning: 2 documents in both kinds" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--positive", "good.jsonl", "--negative", "gone.jsonl", "--out", "m"], "gone.jsonl"),
        (["--positive", "good.jsonl", "--negative", "few.jsonl", "--out", "m"], "negative documents would be"),
        (["--positive", "good.jsonl", "--negative", "bad.parquet", "--out", "few.jsonl"], "is never overwritten"),
        (["--positive", "good.jsonl", "--negative", "bad.parquet", "--out", "m", "--bits", "40"], "bits is 40"),
        (["--positive", "good.jsonl", "--out", "m"], "--negative"),
        (["--positive", "good.jsonl", "--negative", "bad.parquet", "--out", "m", "--text", "body"], "body"),
    ],
)
def test_training_that_cannot_succeed_is_refused(folder: Path, arguments: list[str], message: str) -> None:
    (folder / "few.jsonl").write_text(lines(texts("bad", 15)))
    done = invoke("classifier", "train", *arguments, cwd=folder)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert message in done.stderr and not (folder / "m").exists()
