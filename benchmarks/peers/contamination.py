"""Finds contaminated documents with datatrove's NGramsDecontFilter: reads `items.parquet` and `documents.parquet`, each
with a column text, from a folder, and prints the result as JSON. Imports nothing from datakit.

    python contamination.py FOLDER NGRAM
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from datatrove.data import Document  # pyright: ignore[reportMissingImports]
from datatrove.pipeline.decont.n_grams import (  # pyright: ignore[reportMissingImports]
    NGramsDecontConfig,
    NGramsDecontFilter,
)
from datatrove.utils.text import ngrams, simplify_text  # pyright: ignore[reportMissingImports]


def main() -> None:
    """Print the numbers of contaminated documents, and the CPU seconds of the filter alone."""
    folder, config = Path(sys.argv[1]), NGramsDecontConfig(n_grams=int(sys.argv[2]))
    texts = {name: pq.read_table(folder / f"{name}.parquet")["text"].to_pylist() for name in ("items", "documents")}
    with tempfile.TemporaryDirectory() as index:
        decontaminate = NGramsDecontFilter(index, config)
        hashes: set[int] = set()
        for text in texts["items"]:
            words = decontaminate.tokenizer.word_tokenize(simplify_text(text, config.norm_config))
            hashes |= {decontaminate.hash_func(" ".join(ngram)) for ngram in ngrams(words, config.n_grams)}
        np.array([*hashes], dtype=config.hash_config.np_descr).tofile(Path(index) / "items.index.hashes")
        decontaminate.filter(Document(text="a", id="0"))  # loads the index
        start, found = time.process_time(), []
        for number, text in enumerate(texts["documents"]):
            if decontaminate.filter(Document(text=text, id=str(number))) is not True:
                found.append(number)
        print(json.dumps({"seconds": time.process_time() - start, "found": found}))


if __name__ == "__main__":
    main()
