"""A source with files at several depths."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    for path in ("a.jsonl", "b/c.jsonl", "b/d/e.txt", "b/.hidden/f.jsonl", ".g.jsonl", "b/d/h.jsonl.gz"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    return folder
