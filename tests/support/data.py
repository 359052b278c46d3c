"""Where the real texts for tests are, $DATAKIT_DATA or `shared/data` beside the checkout, and a recipe of them all."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard

from tests.support.paths import REPOSITORY

BESIDE = REPOSITORY.parent / "shared" / "data"
REAL_TOKENIZERS = {"gpt2": "gpt2.json", "olmo-v1_5": "gpt-neox-olmo-dolma-v1_5.json"}
CORPUS = REPOSITORY / "benchmarks" / "text_corpus.toml"


def data_dir() -> Path:
    """The folder of real texts, whether it is there or not."""
    return Path(os.environ.get("DATAKIT_DATA", BESIDE))


def need_data() -> Path:
    """The folder of real texts; the test is skipped, saying so, where it is absent."""
    folder = data_dir()
    if not (folder / "TOKENS.tsv").exists():
        pytest.skip(f"no real texts at {folder}; set DATAKIT_DATA")
    return folder


def corpus_recipe(folder: Path) -> Path:
    """The benchmarks' recipe of all 13 files, with its paths where the texts are on this machine."""
    text = CORPUS.read_text().replace("../../shared/data", str(need_data()))
    path = folder / CORPUS.name
    path.write_text(text)
    return path


def texts_of(path: Path) -> list[str]:
    """The texts of one of the real files."""
    if path.suffix == ".parquet":
        return pq.read_table(path)["text"].to_pylist()
    opened = gzip.open if path.suffix == ".gz" else zstandard.open
    with opened(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]
