"""Sorting: exact duplicates, and partitions smaller than a bucket."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from unittest.mock import patch

import xxhash

from datakit.normalize.readers import slices
from tests.support.normalize.sources import check_contract, normalize, write_lines


def test_partitions_may_share_a_bucket(tmp_path: Path) -> None:
    """Text that compresses a hundredfold gets too few buckets, since they are estimated from the bytes on disk."""
    lines = [{"text": f"{number} " + "again and again " * 500} for number in range(200)]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(data))
    with patch.object(slices, "FILE_OVERHEAD", 0):
        result = normalize(tmp_path, tmp_path / "in.jsonl.gz", partition_bytes=200_000)
    assert len(result.manifest.partitions) == 16
    assert {index.split("/")[-1] for r in result.results for index in r.details.get("runs", ())}
    check_contract(result)


def test_first_of_equal_texts_is_kept(tmp_path: Path) -> None:
    source = tmp_path / "in"
    write_lines(source / "b.jsonl", {"id": "b1", "text": "same"}, {"id": "b2", "text": "other"})
    write_lines(source / "a.jsonl", {"id": "a1", "text": "alone"}, {"id": "a2", "text": "same"}, {"text": "same"})
    result = normalize(tmp_path, source)
    check_contract(result)
    assert {row["text"]: row["source_id"] for row in result.rows()} == {"alone": "a1", "same": "a2", "other": "b2"}
    same = xxhash.xxh3_128_hexdigest(b"same")
    assert result.duplicates() == [
        {"id": same, "source_id": None, "kept_source_id": "a2"},
        {"id": same, "source_id": "b1", "kept_source_id": "a2"},
    ]
    assert result["duplicates"] == 2
