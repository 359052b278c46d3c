"""The recipe's `transform`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tests.support.normalize.sources import check_contract, normalize, write_lines


def longer(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that drops a record, adds two, and makes the text from another column."""
    records = [record for record in batch.to_pylist() if record["n"] != 1]
    made = [{"text": f"{record['body']}!", "n": record["n"]} for record in records]
    return pa.RecordBatch.from_pylist([*made, *({"text": f"new {n}", "n": n} for n in range(2))])


def test_transform_changes_records(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", *({"body": f"b{n}", "n": n} for n in range(3)))
    result = normalize(tmp_path, tmp_path / "in.jsonl", transform=f"{__name__}:longer", transform_version=1)
    assert sorted(row["text"] for row in result.rows()) == ["b0!", "b2!", "new 0", "new 1"]
    assert result["transform_added"] == 1
    check_contract(result)
