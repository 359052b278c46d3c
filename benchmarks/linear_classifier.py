"""Trains a linear classifier that separates two kinds of technical text, and measures how fast it scores documents. The
aim is 100 MB of text per CPU-second.

    python -m benchmarks.linear_classifier [ROUNDS [PYTHON]]     # needs scikit-learn

Prints the CPU time of training, the quality on held-out documents, whether a second training gives the same bytes, and
the median speed of scoring over the rounds (5 by default). PYTHON: an interpreter with datatrove and fastText; then the
same documents are also scored by datatrove's fastText filter, and by datakit's reader of the same fastText model.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datakit.annotate.annotator import Annotator
from datakit.annotate.classifier.config import FasttextClassifierConfig, LinearClassifierConfig
from datakit.annotate.classifier.train import train
from tests.support.data import need_data, texts_of

POSITIVE, NEGATIVE = "php-en.jsonl.gz", "tldr.parquet"
SCORED = (POSITIVE, NEGATIVE, "php-ja.parquet", "laws-de.jsonl.zst")


def main() -> None:
    """Print the measurements."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    folder = need_data() / "text"
    texts = {name: pa.array(texts_of(folder / name), pa.large_string()) for name in SCORED}
    start = time.process_time()
    model = train(pa.chunked_array([texts[POSITIVE]]), pa.chunked_array([texts[NEGATIVE]]))
    print(f"training: {time.process_time() - start:.1f} CPU-seconds, {model.trained_on} documents")
    print(f"held out: {model.quality.documents} documents, ROC AUC {model.quality.roc_auc:.5f}, "
          f"Brier score {model.quality.brier:.5f}")  # fmt: skip
    again = train(pa.chunked_array([texts[POSITIVE]]), pa.chunked_array([texts[NEGATIVE]]))
    print("same bytes when trained again:", model.encoded() == again.encoded())
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "model"
        path.write_bytes(model.encoded())
        annotator = LinearClassifierConfig(str(path), hashlib.sha256(model.encoded()).hexdigest()).annotator()
    for name, column in texts.items():
        print(f"{name}: {speed(annotator, column, rounds):.0f} MB per CPU-second")
    if len(sys.argv) > 2:
        compare(texts, annotator, rounds, sys.argv[2])


def speed(annotator: Annotator, column: pa.Array, rounds: int) -> float:
    """Return the median speed, in MB of text per CPU-second."""
    batch, seconds = pa.record_batch({"text": column}), list[float]()
    for _ in range(rounds):
        start = time.process_time()
        annotator.annotate(batch)
        seconds.append(time.process_time() - start)
    return batch.nbytes / statistics.median(seconds) / 1e6


def compare(texts: dict[str, pa.Array], annotator: Annotator, rounds: int, python: str) -> None:
    """Print the speeds of datatrove's fastText filter and of datakit's two classifiers on the same documents."""
    script = Path(__file__).parent / "peers" / "classifiers.py"
    documents = pa.concat_arrays([*texts.values()])
    size = pa.record_batch({"text": documents}).nbytes
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, column in (("positive", texts[POSITIVE]), ("negative", texts[NEGATIVE]), ("documents", documents)):
            pq.write_table(pa.table({"text": column}), folder / f"{name}.parquet")
        done = subprocess.run([python, script, place], check=True, capture_output=True, text=True)
        peer = json.loads(done.stdout.splitlines()[-1])
        sha256 = hashlib.sha256((folder / "model.bin").read_bytes()).hexdigest()
        config = FasttextClassifierConfig(str(folder / "model.bin"), sha256, ("positive",), max_bytes=1 << 30)
        fasttext = config.annotator()
        scores = fasttext.annotate(pa.record_batch({"text": documents})).column(0)
        near = np.abs(scores.fill_null(0).to_numpy() - np.array(peer["scores"])) < 1e-3
        print(f"{len(documents)} documents, {size / 1e6:.0f} MB, in MB per CPU-second:")
        print(f"datatrove with fastText: {size / peer['seconds'] / 1e6:.1f}")
        print(f"datakit, the same fastText model: {speed(fasttext, documents, rounds):.1f} "
              f"({near.mean():.2%} of the scores are within 0.001)")  # fmt: skip
        print(f"datakit, linear classifier: {speed(annotator, documents, rounds):.1f}")


if __name__ == "__main__":
    main()
