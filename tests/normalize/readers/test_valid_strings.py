"""Repairing strings that are not UTF-8."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.normalize.readers import read, rows


def test_invalid_strings_are_repaired_in_every_column(tmp_path: Path) -> None:
    broken = pa.StringArray.from_buffers(2, pa.array([b"ok", b"caf\xe9"]).buffers()[1], pa.py_buffer(b"okcaf\xe9"))
    table = pa.table({"text": ["a", "b"], "name": broken, "deep": pa.StructArray.from_arrays([broken], names=["x"])})
    pq.write_table(table, tmp_path / "in.parquet")
    found, counts = read(tmp_path, "in.parquet")
    assert rows(found)[1] == {"text": "b", "name": "caf\ufffd", "deep": {"x": "caf\ufffd"}}
    assert counts.counters["normalize/invalid_utf8"] == 2
    found[0].table.validate(full=True)
