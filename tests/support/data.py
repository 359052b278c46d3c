"""Finds the real texts for tests, in $DATAKIT_DATA or `shared/data` next to the checkout, and their recipe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

BESIDE = REPOSITORY.parent / "shared" / "data"
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
