"""Only the text of clustered documents is read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from pyarrow.parquet import FileMetaData

from datakit.dedup import stage
from datakit.storage.parquet import open_shard
from tests.support.dedup.dedup_inputs import dedup_step, run_step, write_source
from tests.support.dedup.made_up_texts import edited, text_of


def test_only_row_groups_with_clustered_documents_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datakit.storage.parquet.ROW_GROUP_ROWS", 10)
    base = text_of(1)
    source = write_source(tmp_path, "s", [base, edited(base, 1), *(text_of(i) for i in range(100, 300))])
    step = dedup_step(tmp_path / "dedup", [source], stage.Config())
    read: list[int] = []

    class Counting:
        """A shard that records which row groups are decoded."""

        def __init__(self, url: str) -> None:
            self.shard = open_shard(url)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *error: object) -> None:
            self.shard.close()

        @property
        def metadata(self) -> FileMetaData:
            return self.shard.metadata

        def read_row_group(self, group: int, *columns: Any, **how: Any) -> pa.Table:
            read.append(group)
            return self.shard.read_row_group(group, *columns, **how)

    monkeypatch.setattr("datakit.dedup.verification.cluster_shingles.open_shard", Counting)
    assert len(run_step(step).attributes()) == 1
    assert 2 <= len(read) <= 4, "of 21 row groups of text and 21 of signatures"
