"""The columns of a slice's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.errors import ColumnError
from tests.support.normalize.sources import normalize, write_lines


def test_missing_text_column_names_the_others(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", {"id": "1", "context": "x", "n": 1})
    with pytest.raises(
        ColumnError, match=r"in\.jsonl has no column 'content'; it has id, context, n \(did you mean 'co"
    ):
        normalize(tmp_path, tmp_path / "in.jsonl", text="content")
