"""Repairing strings that are not UTF-8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datakit.engine.task import Tolerance
from datakit.errors import ColumnError
from datakit.normalize.readers.valid_strings import with_valid_strings
from datakit.normalize.record_counts import RecordCounts
from tests.support.normalize.readers import read, rows


def test_invalid_strings_are_repaired_in_every_column(tmp_path: Path) -> None:
    broken = pa.StringArray.from_buffers(2, pa.array([b"ok", b"caf\xe9"]).buffers()[1], pa.py_buffer(b"okcaf\xe9"))
    pairs = pa.MapArray.from_arrays([0, 1, 2], pa.array(["k", "k"]), broken)
    deep = pa.StructArray.from_arrays([broken], names=["x"])
    table = pa.table({"text": ["a", "b"], "name": broken, "deep": deep, "pairs": pairs})
    pq.write_table(table, tmp_path / "in.parquet")
    found, counts = read(tmp_path, "in.parquet")
    name = "caf\ufffd"
    assert rows(found)[1] == {"text": "b", "name": name, "deep": {"x": name}, "pairs": [("k", name)]}
    assert counts.counters["normalize/invalid_utf8"] == 3
    found[0].table.validate(full=True)


def test_other_invalid_values_are_refused_with_file_and_column() -> None:
    broken = pa.Array.from_buffers(pa.time32("s"), 1, [None, pa.py_buffer(np.array([-1], np.int32))])
    with pytest.raises(ColumnError, match=r"in\.parquet: column 'when' has values that are not valid time32"):
        with_valid_strings("in.parquet", pa.table({"when": broken}), "text", RecordCounts(Tolerance()))
