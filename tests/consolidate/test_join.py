"""The join removes exactly the named documents, and rejects streams that are out of order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.consolidate import join as joining
from datakit.consolidate.join import join
from datakit.errors import CorruptError
from datakit.storage.parquet import ShardWriter
from tests.support.partitions import ATTRIBUTES, documents, words


def test_unordered_ids_are_rejected_on_either_side(tmp_path: Path) -> None:
    good = documents("novels", words(1, 40))
    blank = [pa.nulls(40, field.type) for field in list(ATTRIBUTES)[2:]]
    marks = pa.table([good["id"], pa.array(["exact"] * 40), *blank], schema=ATTRIBUTES)
    swapped, doubled = [*range(1, 40), 0], [0, *range(39)]

    def written(name: str, table: pa.Table) -> str:
        with ShardWriter(str(tmp_path / name), table.schema) as writer:
            writer.write(table)
        return str(tmp_path / name)

    rows, names = written("rows", good), written("names", marks)
    assert sum(part.dropped.total() for part in join(rows, names, frozenset({"exact"}))) == 40
    for number, order in enumerate((swapped, doubled)):
        with pytest.raises(CorruptError, match="not strictly ascending"):
            list(join(written(f"rows{number}", good.take(order)), names, frozenset({"exact"})))
        with pytest.raises(CorruptError, match="not strictly ascending"):
            list(join(rows, written(f"names{number}", marks.take(order)), frozenset({"exact"})))


@settings(max_examples=40, deadline=None)
@given(
    ids=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 2**64 - 1) | st.integers(0, 3)), min_size=1, max_size=60),
    data=st.data(),
    rows_per_group=st.integers(1, 9),
)
def test_join_equals_a_set_difference(ids: set[tuple[int, int]], data: st.DataObject, rows_per_group: int) -> None:
    """This includes ids with equal upper halves and any row group boundaries."""
    names = sorted(f"{high:016x}{low:016x}" for high, low in ids)
    marked = sorted(data.draw(st.sets(st.sampled_from(names))))
    leaving = set(data.draw(st.sets(st.sampled_from(marked)))) if marked else set()
    table = pa.table({"id": names, "text": pa.array(names, pa.large_string())})
    marks = pa.table(
        {"id": pa.array(marked, pa.string()), "reason": ["exact" if x in leaving else "fuzzy" for x in marked]}
    )
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table, f"{folder}/rows", row_group_size=rows_per_group)
        pq.write_table(
            marks.cast(pa.schema([("id", pa.string()), ("reason", pa.string())])), f"{folder}/marks", row_group_size=2
        )
        parts = list(join(f"{folder}/rows", f"{folder}/marks", frozenset({"exact"})))
    kept = [name for part in parts for name in part.kept["id"].to_pylist()]
    assert kept == [name for name in names if name not in leaving]
    assert sum(part.rows_in for part in parts) == len(names)
    assert sum(part.marked_kept for part in parts) == len(marked) - len(leaving)


def test_count_up_to_compares_whole_ids() -> None:
    high, low = np.array([1, 1, 1, 2], np.uint64), np.array([3, 5, 9, 0], np.uint64)
    assert [joining.count_up_to(high, low, limit) for limit in [(0, 9), (1, 4), (1, 5), (1, 10), (2, 0)]] == list(
        range(5)
    )
