"""Where the real texts for tests lie: $DATAKIT_DATA, or `shared/data` beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def data_dir() -> Path:
    """The folder of real texts, whether it is there or not."""
    return Path(os.environ.get("DATAKIT_DATA", BESIDE))


def need_data() -> Path:
    """The folder of real texts; the test is skipped, saying so, where it is absent."""
    folder = data_dir()
    if not (folder / "TOKENS.tsv").exists():
        pytest.skip(f"no real texts at {folder}; set DATAKIT_DATA")
    return folder
