"""The join finds exactly the marked documents, with all their reasons, and rejects streams that are out of order."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import CorruptError
from datakit.select.join import join
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
    assert sum(part.leaving.num_rows for part in join(rows, [names], frozenset({"exact"}))) == 40
    for number, order in enumerate((swapped, doubled)):
        with pytest.raises(CorruptError, match="not strictly ascending"):
            list(join(written(f"rows{number}", good.take(order)), [names], frozenset({"exact"})))
        with pytest.raises(CorruptError, match="not strictly ascending"):
            list(join(rows, [written(f"names{number}", marks.take(order))], frozenset({"exact"})))


@settings(max_examples=60, deadline=None)
@given(
    ids=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 2**64 - 1) | st.integers(0, 3)), min_size=1, max_size=60),
    data=st.data(),
    rows_per_group=st.integers(1, 9),
    drop=st.sets(st.sampled_from(["exact", "fuzzy", "rule"])),
)
def test_join_equals_looking_up_every_mark(
    ids: set[tuple[int, int]], data: st.DataObject, rows_per_group: int, drop: set[str]
) -> None:
    """This holds for several lists of marks, for ids with equal upper halves, and for any size of row groups."""
    names = sorted(f"{high:016x}{low:016x}" for high, low in ids)
    reasons = st.dictionaries(st.sampled_from(names), st.sampled_from(["exact", "fuzzy", "rule"]))
    lists = data.draw(st.lists(reasons, max_size=3))
    with tempfile.TemporaryDirectory() as folder:
        table = pa.table({"id": names, "text": pa.array(names, pa.large_string())})
        pq.write_table(table, f"{folder}/rows", row_group_size=rows_per_group)
        for number, marks in enumerate(lists):
            kind = pa.schema([("id", pa.string()), ("reason", pa.string())])
            rows = [{"id": name, "reason": marks[name]} for name in sorted(marks)]
            pq.write_table(pa.Table.from_pylist(rows, kind), f"{folder}/marks{number}", row_group_size=2)
        files = [f"{folder}/marks{number}" for number in range(len(lists))]
        parts = list(join(f"{folder}/rows", files, frozenset(drop)))
    found = {name: sorted({marks[name] for marks in lists if name in marks} & drop) for name in names}
    expected = [{"id": name, "row": row, "reasons": found[name]} for row, name in enumerate(names) if found[name]]
    assert [row for part in parts for row in part.leaving.to_pylist()] == expected
    assert sum((part.combinations for part in parts), Counter()) == Counter(
        "+".join(row["reasons"]) for row in expected
    )
    assert sum(part.rows_in for part in parts) == len(names)
    kept = sum(reason not in drop for marks in lists for reason in marks.values())
    assert sum(part.marked_kept for part in parts) == kept
