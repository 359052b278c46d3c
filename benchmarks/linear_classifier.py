"""Trains a linear classifier that separates two kinds of technical text, and measures how fast it scores documents. The
aim is 100 MB of text per CPU-second.

    python -m benchmarks.linear_classifier [ROUNDS]     # needs scikit-learn

Prints the CPU time of training, the quality on held-out documents, whether a second training gives the same bytes, and
the median speed of scoring over the rounds (5 by default).
"""

from __future__ import annotations

import hashlib
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from datakit.annotate.classifier.config import LinearClassifierConfig
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
        batch, seconds = pa.record_batch({"text": column}), list[float]()
        for _ in range(rounds):
            start = time.process_time()
            annotator.annotate(batch)
            seconds.append(time.process_time() - start)
        print(f"{name}: {batch.nbytes / statistics.median(seconds) / 1e6:.0f} MB per CPU-second")


if __name__ == "__main__":
    main()
