"""Measures the speed of the signature kernel on three kinds of text. The aim is 240 MB of text per CPU-second.

python -m benchmarks.signatures
"""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.parquet as pq

from datakit.dedup.minhash.signatures import sign, warm
from tests.support.data import need_data
from tests.support.dedup.dedup_inputs import read_texts


def columns() -> dict[str, pa.ChunkedArray]:
    """Load English, Japanese and technical texts."""
    folder = need_data()
    texts = {name: pq.read_table(folder / "text" / f"{name}.parquet")["text"] for name in ("tldr", "php-ja")}
    revisions = read_texts(folder / "neardup" / "rfc-revisions" / "docs.jsonl.zst")
    return texts | {"rfc-revisions": pa.chunked_array([pa.array(revisions.values(), pa.large_string())])}


def main() -> None:
    """Print megabytes per CPU-second, the best of three rounds."""
    warm()
    for name, texts in columns().items():
        column, seconds = texts.combine_chunks().cast(pa.large_string()), float("inf")
        for _ in range(3):
            start = time.process_time()
            sign(column, bands=14, rows=8, ngram=5, seed=42, min_shingles=5)
            seconds = min(seconds, time.process_time() - start)
        print(f"{name}: {column.nbytes / seconds / 1e6:.0f} MB per CPU-second")


if __name__ == "__main__":
    main()
