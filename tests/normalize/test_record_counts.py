"""Quarantine: which records may be left out, and when a task gives up."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datakit.engine.task import TaskContext
from datakit.errors import PartialError
from datakit.normalize import route
from tests.support.normalize.sources import check_contract, normalize


def test_unusable_records_are_listed_by_position(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'{"text": "good"}\nsecret\n{"text": 5}\n')
    with pytest.raises(
        PartialError,
        match=r"2 records cannot be used, but max_quarantined allows 1(.*\n)*.*set normalize\.max_quarantined",
    ) as caught:
        normalize(tmp_path / "one", tmp_path / "in.jsonl", max_quarantined=1)
    assert re.search(r"in\.jsonl:17: not JSON.* character \d+ \(line 2\)\n", str(caught.value))
    assert "in.jsonl:24: 'text' holds" in str(caught.value)
    assert "secret" not in str(caught.value)
    result = normalize(tmp_path / "two", tmp_path / "in.jsonl", max_quarantined=2)
    assert result.quarantined() == [("in.jsonl", 17), ("in.jsonl", 24)]
    assert result.manifest.quarantine.records == 2
    assert result.manifest.identity != result.manifest.fingerprint
    check_contract(result)


@pytest.mark.parametrize("places", [range(25), range(0, 10_000, 400)], ids=["at the beginning", "everywhere"])
def test_share_applies_to_all_records(tmp_path: Path, places: range) -> None:
    lines = [b"broken" if number in places else b'{"text": "number %d"}' % number for number in range(10_000)]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    result = normalize(tmp_path / "enough", tmp_path / "in.jsonl", max_quarantined=0.01)
    assert (result["records_out"], result["quarantined"]) == (9975, 25)
    with pytest.raises(PartialError, match=r"25 records cannot be used, but max_quarantined allows 20;"):
        normalize(tmp_path / "too little", tmp_path / "in.jsonl", max_quarantined=0.002)


def test_bad_file_may_be_within_a_share(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in range(20):
        line = b"broken\n" if name == 0 else b'{"text": "in file %d"}\n' % name
        (tmp_path / "in" / f"{name:02d}.jsonl").write_bytes(line * 500)
    assert normalize(tmp_path, tmp_path / "in", max_quarantined=0.05)["quarantined"] == 500


def test_bad_row_group_may_be_within_a_share(tmp_path: Path) -> None:
    texts = pa.table({"text": [f"number {number}" for number in range(4000)]})
    pq.write_table(texts, tmp_path / "in.parquet", row_group_size=2000, write_page_checksum=True)
    column = pq.ParquetFile(tmp_path / "in.parquet").metadata.row_group(0).column(0)
    data = bytearray((tmp_path / "in.parquet").read_bytes())
    data[4 + column.total_compressed_size // 2] ^= 0xFF
    (tmp_path / "in.parquet").write_bytes(data)
    assert normalize(tmp_path, tmp_path / "in.parquet", max_quarantined=0.5)["quarantined"] == 2000


@pytest.mark.parametrize("line", [b'{"text": 5, "body": "%s"}\n', b'[{"text": "%s"}]\n'])
@pytest.mark.parametrize("limit", [0.5, 100, 0.0])
def test_hopeless_stream_is_given_up_early(tmp_path: Path, line: bytes, limit: float) -> None:
    """A mistake in the recipe affects every record, so it must show early in a stream of any length."""
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress((line % (b"word " * 40)) * 80_000, 1))  # 18 MB
    read = []

    def counted(context: TaskContext, files: Any, positions: np.ndarray, alone: Any) -> Any:
        read.append(int(positions[-1]))
        return records(context, files, positions, alone)

    records = TaskContext.records
    with patch.object(TaskContext, "records", counted), pytest.raises(PartialError, match=r"(more than|first) [0-9]+"):
        normalize(tmp_path, tmp_path / "in.jsonl.gz", max_quarantined=limit)
    assert max(read) < 9 << 20


def test_hopeless_slice_of_long_documents_is_given_up(tmp_path: Path) -> None:
    """Otherwise a mistake in the recipe would show only after all slices were read."""
    (tmp_path / "in.jsonl").write_bytes((b'{"text": 5, "body": "%s"}\n' % (b"word " * 400)) * 200)  # 400 kB
    words = r"200 of the first 200 records cannot be used, but max_quarantined .* 0\.5"
    with patch.object(route, "WHOLE_SLICE_BYTES", 400_000), pytest.raises(PartialError, match=words):
        normalize(tmp_path, tmp_path / "in.jsonl", max_quarantined=0.5)
