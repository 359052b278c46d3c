"""All files that cannot be used are named at once, whichever slices they are in."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datakit.errors import ColumnError, RefusedInputsError
from datakit.normalize.readers import slices
from tests.support.normalize.sources import normalize, write_lines


def shelf(folder: Path, *names: str) -> Path:
    """Write these refused files, and sound ones around them."""
    folder.mkdir()
    write_lines(folder / "a.jsonl", {"text": "one", "n": 1, "m": {"x": 1}})
    write_lines(folder / "z.jsonl", {"text": "two", "n": 2})
    for name in names:
        if name.startswith("conflict"):
            write_lines(folder / name, {"text": "three", "n": {"x": 1}, "m": 5})
        elif name.endswith(".parquet"):
            pq.write_table(pa.table({"text": [["a"]]}), folder / name)
        else:
            (folder / name).write_bytes(b"%PDF-1.5" if name.startswith("pdf") else b'{"body": 1}\n')
    return folder


REFUSED = ("body.jsonl", "conflict.jsonl", "list.parquet", "pdf.jsonl")


@pytest.mark.parametrize("where", ["", "n < 5"])
def test_every_refused_file_of_a_slice_is_named(tmp_path: Path, where: str) -> None:
    """Also in the pass that decides the types for `where`, which comes first and stopped at the first such file."""
    settings: dict[str, Any] = {"where": where} if where else {}
    with pytest.raises(RefusedInputsError) as caught:
        normalize(tmp_path, shelf(tmp_path / "in", *REFUSED), **settings)
    messages = "\n".join(caught.value.messages)
    assert [name for name in REFUSED if name not in messages] == ([] if not where else ["list.parquet"])
    assert "column 'n' is int64 in a.jsonl and struct<x: int64> in conflict.jsonl" in messages
    assert "column 'm' is struct<x: int64> in a.jsonl and int64 in conflict.jsonl" in messages


def test_conflicts_between_slices_name_all_columns(tmp_path: Path) -> None:
    with patch.object(slices, "SLICE_BYTES", 1), pytest.raises(RefusedInputsError) as caught:
        normalize(tmp_path, shelf(tmp_path / "in", "conflict.jsonl"))
    assert [message.split(" is ")[0] for message in caught.value.messages] == ["column 'n'", "column 'm'"]


def test_single_refused_file_keeps_its_error(tmp_path: Path) -> None:
    with pytest.raises(ColumnError, match=r"^body\.jsonl has no column 'text'"):
        normalize(tmp_path, shelf(tmp_path / "in", "body.jsonl"))


def test_damaged_stream_is_no_refusal(tmp_path: Path) -> None:
    """Its bytes may look like anything until the damage is noticed; other files of the slice are refused as before."""
    folder = shelf(tmp_path / "in", "body.jsonl")
    (folder / "c.jsonl.gz").write_bytes(b"\x1f\x8b\x08\0broken")
    with pytest.raises(ColumnError, match=r"^body\.jsonl has no column 'text'"):
        normalize(tmp_path, folder, max_quarantined=5)
