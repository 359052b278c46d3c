"""The tokenizer of the imported caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.caches import trained


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    """Path of a tokenizer.json with 400 ids."""
    (tmp_path / "tokenizer.json").write_bytes(trained())
    return str(tmp_path / "tokenizer.json")
