"""Trains a fastText classifier on `positive.parquet` and `negative.parquet`, and scores `documents.parquet` with
datatrove's FastTextClassifierFilter. Each file has a column text, and lies in a folder; the model is written there as
`model.bin`. Prints the CPU seconds of the filter alone, as JSON. Imports nothing from datakit.

    python classifiers.py FOLDER       # needs datatrove and fasttext-numpy2-wheel
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import fasttext  # pyright: ignore[reportMissingImports]
import pyarrow.parquet as pq
from datatrove.data import Document  # pyright: ignore[reportMissingImports]
from datatrove.pipeline.filters import FastTextClassifierFilter  # pyright: ignore[reportMissingImports]


def texts_of(folder: Path, name: str) -> list[str]:
    """Return the texts of a file."""
    return pq.read_table(folder / f"{name}.parquet")["text"].to_pylist()


def train(folder: Path) -> Path:
    """Train a model with words and pairs of words, with one thread, and return its path."""
    lines = folder / "train.txt"
    with open(lines, "w", encoding="utf-8") as file:
        for label in ("positive", "negative"):
            file.writelines(f"__label__{label} {' '.join(text.split())}\n" for text in texts_of(folder, label))
    model = fasttext.train_supervised(  # pyright: ignore[reportAttributeAccessIssue]
        str(lines), wordNgrams=2, bucket=1 << 18, dim=16, epoch=5, thread=1, verbose=0
    )
    model.save_model(str(folder / "model.bin"))
    return folder / "model.bin"


def main() -> None:
    """Print the measurement."""
    folder = Path(sys.argv[1])
    judge = FastTextClassifierFilter(str(train(folder)), keep_labels=("positive", 0.5), newline_replacement=" ")
    documents = [Document(text=text, id=str(number)) for number, text in enumerate(texts_of(folder, "documents"))]
    judge.filter(Document(text="a", id="0"))  # loads the model
    start = time.process_time()
    for document in documents:
        judge.filter(document)
    seconds = time.process_time() - start
    scores = [float(document.metadata.get("__label__positive", 0.0)) for document in documents]
    print(json.dumps({"seconds": seconds, "scores": scores}))


if __name__ == "__main__":
    main()
