"""Where the real texts for tests are, $DATAKIT_DATA or `shared/data` beside the checkout, and a recipe of them all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

BESIDE = REPOSITORY.parent / "shared" / "data"
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
