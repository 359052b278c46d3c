"""The first source that has a document keeps it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from datakit.dedup.exact_duplicates import copies
from tests.support.dedup.dedup_inputs import deduplicate, id_of, write_source
from tests.support.dedup.made_up_texts import check_conservation, removals, text_of


def test_first_source_keeps_shared_documents(tmp_path: Path) -> None:
    texts = [text_of(i) for i in range(60)]
    sources = [
        write_source(tmp_path, "first", texts[:30], bits=2),
        write_source(tmp_path, "second", texts[20:50], bits=0),
        write_source(tmp_path, "third", texts[10:60], bits=3),
    ]
    result = deduplicate(tmp_path, sources)
    expected = {("second", id_of(text)): "first" for text in texts[20:30]}
    expected |= {("third", id_of(text)): "first" if i < 20 else "second" for i, text in enumerate(texts[10:50])}
    found = removals(result)
    assert {key: row["representative_source"] for key, row in found.items()} == expected
    for (_, identity), row in found.items():
        assert (row["reason"], row["jaccard"]) == ("exact", 1.0)
        assert row["representative_id"] == row["cluster_id"] == identity
    check_conservation(result)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30), st.integers(1, 7))
def test_copies_point_to_first_equal_id(ids: list[tuple[int, int]], rows_in_a_table: int) -> None:
    order = sorted(range(len(ids)), key=lambda row: (ids[row], row))
    columns = np.array([(*ids[row], row) for row in order], np.uint64).reshape(-1, 3).T
    whole = pa.table(dict(zip(("high", "low", "row"), columns, strict=True)))
    tables = [whole.slice(start, rows_in_a_table) for start in range(0, len(ids), rows_in_a_table)]
    found = [row for table in copies(tables) for row in table.to_pylist()]
    expected = {place: ids.index(one) for place, one in enumerate(ids) if ids.index(one) != place}
    assert {row["row"]: row["kept_row"] for row in found} == expected
    assert [(row["high"], row["low"]) for row in found] == [ids[row["row"]] for row in found]
