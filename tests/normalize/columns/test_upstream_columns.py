"""The columns of a slice's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.errors import ColumnError
from tests.support.fuzz.json_sources import Case, check
from tests.support.normalize.sources import normalize, write_lines


def test_missing_text_column_names_the_others(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", {"id": "1", "context": "x", "n": 1})
    with pytest.raises(
        ColumnError, match=r"in\.jsonl has no column 'content'; it has id, context, n \(did you mean 'co"
    ):
        normalize(tmp_path, tmp_path / "in.jsonl", text="content")


def test_conflicting_types_are_attributed_to_their_files(tmp_path: Path) -> None:
    """The union of the columns so far belongs to no single file."""
    for name, value in (("a", None), ("b", {"x": 1}), ("c", 5)):
        write_lines(tmp_path / "in" / f"{name}.jsonl", {"text": "t", "n": value})
    with pytest.raises(ColumnError, match=r"column 'n' is struct<x: int64> in b\.jsonl and int64 in c\.jsonl"):
        normalize(tmp_path / "out", tmp_path / "in")


def test_later_slices_of_a_file_may_lack_texts() -> None:
    """A record without a text is a blank one, wherever the file was cut; it made its slice fail."""
    check(Case(files=((b'{"x": 1}', b'{"x": 2}'),), chunk=1, part=50))
