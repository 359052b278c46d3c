"""Shards appear whole and read the same from a disk and from S3."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from datakit.storage import parquet, urls
from datakit.storage.parquet import ShardWriter, find_rows, read_shard
from datakit.storage.row_size import row_sizes


def names(root: str) -> list[str]:
    return [info.path for info in urls.listing(root)]


def test_error_while_writing_leaves_no_file(root: str) -> None:
    with (
        pytest.raises(RuntimeError),
        ShardWriter(urls.join(root, "part.parquet"), pa.schema([("a", "int64")])) as shard,
    ):
        shard.write(pa.table({"a": [1, 2]}))
        raise RuntimeError("stop")
    assert names(root) == []
    if urls.is_local(root):
        assert list(Path(root).iterdir()) == []


def test_shards_read_back_equal(root: str) -> None:
    table = pa.table(
        {"n": range(1_000), "text": pa.array(["word " * (i % 7) for i in range(1_000)], pa.large_string())}
    )
    with ShardWriter(urls.join(root, "part.parquet"), table.schema) as shard:
        shard.write(table.slice(0, 300))
        shard.write(table.slice(300))
    assert read_shard(urls.join(root, "part.parquet")) == table
    assert shard.info.rows == 1_000


def test_rows_are_found_by_id_in_every_row_group(root: str) -> None:
    ids = [f"{number // 2:032x}" for number in range(10)]
    table = pa.table({"id": ids, "text": pa.array([f"text {n}" for n in range(10)], pa.large_string())})
    with patch.object(parquet, "ROW_GROUP_ROWS", 3), ShardWriter(urls.join(root, "part"), table.schema) as shard:
        shard.write(table)
    for number, identity in enumerate(dict.fromkeys(ids)):
        rows = [(row, {"text": f"text {row}"}) for row in (2 * number, 2 * number + 1)]
        assert find_rows(shard.url, identity, ["text"]) == rows
    assert find_rows(shard.url, "f" * 32, ["id"]) == []


def test_row_groups_are_those_that_the_writer_makes(root: str) -> None:
    table = pa.table({"n": range(500), "text": pa.array(["word " * (i % 70) for i in range(500)], pa.large_string())})
    with patch.object(parquet, "ROW_GROUP_ROWS", 30), patch.object(parquet, "ROW_GROUP_BYTES", 3_000):
        with ShardWriter(urls.join(root, "part"), table.schema) as shard:
            for start in range(0, 500, 7):
                shard.write(table.slice(start, 7))
        spans = list(parquet.row_groups(row_sizes(table)))
    written = parquet.open_shard(shard.url).metadata
    made = [written.row_group(number).num_rows for number in range(written.num_row_groups)]
    assert [stop - first for first, stop in spans] == made
    assert [first for first, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
    assert 30 in made, "one is limited by its number of rows"
    assert min(made[:-1]) < 30, "one is limited by its size"
