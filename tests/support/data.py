"""Finds the real texts for tests, in $DATAKIT_DATA or `shared/data` next to the checkout, and their recipe."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard

from tests.support.paths import REPOSITORY

BESIDE = REPOSITORY.parent / "shared" / "data"
REAL_TOKENIZERS = {"gpt2": "gpt2.json", "olmo-v1_5": "gpt-neox-olmo-dolma-v1_5.json"}
CORPUS = REPOSITORY / "benchmarks" / "text_corpus.toml"


def data_dir() -> Path:
    """The folder of real texts, whether or not it exists."""
    return Path(os.environ.get("DATAKIT_DATA", BESIDE))


def need_data() -> Path:
    """The folder of real texts; skip the test if it does not exist."""
    folder = data_dir()
    if not (folder / "TOKENS.tsv").exists():
        pytest.skip(f"no real texts at {folder}; set DATAKIT_DATA")
    return folder


def corpus_recipe(folder: Path) -> Path:
    """The benchmarks' recipe of all 13 files, with the paths of this machine."""
    text = CORPUS.read_text().replace("../../shared/data", str(need_data()))
    path = folder / CORPUS.name
    path.write_text(text)
    return path


def texts_of(path: Path) -> list[str]:
    """The texts of one of the real files."""
    return [row["text"] for row in rows_of(path)]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The records of one of the real files."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    opened = gzip.open if path.suffix == ".gz" else zstandard.open
    with opened(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
