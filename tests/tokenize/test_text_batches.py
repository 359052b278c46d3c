"""Tests of reading a partition's documents in batches."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.storage.parquet import read_group
from datakit.tokenize import text_batches as text_batches_module
from datakit.tokenize.text_batches import text_batches
from tests.support.caches import clean
from tests.support.partitions import documents, normalized, words


def test_batches_cover_a_partition_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_batches_module, "BATCH_BYTES", 1000)
    texts = [*words(1, 100), "long " * 1000]
    source = normalized(tmp_path, "web", texts)
    found = list(text_batches(str(tmp_path / "web" / source.manifest.partitions[0].path)))
    expected = documents("web", texts)
    assert [text for batch in found for text in batch.strings()] == expected["text"].to_pylist()
    assert [name for batch in found for name in batch.ids.to_pylist()] == expected["id"].to_pylist()
    assert all(batch.text_bytes <= 1000 or len(batch.ids) == 1 for batch in found)
    for batch in found:
        cuts = zip(batch.offsets.tolist(), batch.offsets.tolist()[1:], strict=False)
        assert [batch.data[start:stop].tobytes().decode() for start, stop in cuts] == batch.strings()


def test_batches_share_the_memory_of_their_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[pa.Table] = []

    def kept(*arguments: Any) -> pa.Table:
        groups.append(read_group(*arguments))
        return groups[-1]

    monkeypatch.setattr(text_batches_module, "read_group", kept)
    monkeypatch.setattr(text_batches_module, "BATCH_BYTES", 1000)
    source = normalized(tmp_path, "web", words(1, 100))
    found = list(text_batches(str(tmp_path / "web" / source.manifest.partitions[0].path)))
    (group,) = groups
    assert len(found) > 1
    for name, parts in (("id", [batch.ids for batch in found]), ("text", [batch.text for batch in found])):
        (chunk,) = group[name].chunks
        assert {part.buffers()[2].address for part in parts} == {chunk.buffers()[2].address}


@settings(max_examples=30, deadline=None)
@given(data=st.data(), batch_bytes=st.integers(1, 5000), group=st.integers(1, 30))
def test_rows_that_leave_are_not_yielded(data: st.DataObject, batch_bytes: int, group: int) -> None:
    """The batches hold the other documents, in order, with their rows in the file."""
    texts = [*words(1, 60), "long " * 1000]
    names = documents("web", texts)["id"].to_pylist()
    leaving = data.draw(st.sets(st.sampled_from(names)))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("datakit.storage.parquet.ROW_GROUP_ROWS", group)
        patch.setattr(text_batches_module, "BATCH_BYTES", batch_bytes)
        inputs = clean(Path(folder), {"web": texts}, leaving={"web": {name: ["exact"] for name in leaving}})
        (source, select), path = inputs, inputs[0].manifest.partitions[0].path
        found = list(text_batches(f"{source.directory}/{path}", leaving=f"{select.directory}/{path}"))
    expected = [(name, row) for row, name in enumerate(names) if name not in leaving]
    assert [name for batch in found for name in batch.ids.to_pylist()] == [name for name, _ in expected]
    assert [row for batch in found for row in batch.rows.tolist()] == [row for _, row in expected]
    assert [batch.row for batch in found] == [sum(len(one.ids) for one in found[:at]) for at in range(len(found))]
    assert [batch.position for batch in found] == [
        sum(one.text_bytes for one in found[:at]) for at in range(len(found))
    ]
