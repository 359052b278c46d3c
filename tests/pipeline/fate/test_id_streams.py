"""Sorted ids of several steps are compared range by range, whatever the partitions and row groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.errors import CorruptError
from datakit.pipeline.fate.behind import Finished
from datakit.pipeline.fate.id_streams import IdStream, keys_of, mark_in, side_by_side
from datakit.storage.manifest import Manifest, Partition, Quarantine, Totals

ids = st.integers(0, 40) | st.integers(0, 2**128 - 1) | st.builds(lambda n: n << 64, st.integers(0, 9))
sets = st.lists(st.tuples(st.sets(ids, max_size=60), st.integers(1, 9), st.integers(1, 20)), min_size=1, max_size=4)


def step_with(folder: Path, found: Sequence[int], files: int, group: int) -> Finished:
    """Write ids to several files with small row groups; a mark is the remainder by 3."""
    folder.mkdir()
    cuts = [len(found) * number // files for number in range(files + 1)]
    parts = []
    for number, (start, stop) in enumerate(pairwise(cuts)):
        some = found[start:stop]
        columns = {"id": [f"{one:032x}" for one in some], "kind": ["abc"[one % 3] for one in some]}
        table = pa.table(columns, pa.schema([("id", pa.string()), ("kind", pa.string())]))
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=group)
        parts.append(Partition(f"{number}.parquet", "web", len(some), 1, ""))
    totals = Totals(len(found), 1)
    return Finished(str(folder), Manifest("s", "d", "f", "i", {}, [], [], parts, totals, {}, Quarantine(0)))


@given(sets)
def test_ranges_have_all_ids_once_and_compare_like_sets(chosen: list[tuple[set[int], int, int]]) -> None:
    with TemporaryDirectory() as folder:
        steps = [step_with(Path(folder, str(n)), sorted(found), files, group)
                 for n, (found, files, group) in enumerate(chosen)]  # fmt: skip
        seen: list[list[int]] = [[] for _ in steps]
        common: list[set[int]] = [set() for _ in steps]
        for parts in side_by_side([IdStream(step, "web", "", "kind", ["b", "c"]) for step in steps]):
            for number, part in enumerate(parts):
                numbers = [int.from_bytes(key.ljust(16, b"\0")) for key in part.keys.tolist()]
                assert part.marks.tolist() == [one % 3 - 1 for one in numbers]
                seen[number] += numbers
                marks = mark_in(part.keys, parts[0])
                common[number] |= {one for one, mark in zip(numbers, marks, strict=True) if mark != -2}
    assert seen == [sorted(found) for found, _, _ in chosen]
    assert common == [found & chosen[0][0] for found, _, _ in chosen]


def test_missing_step_or_source_has_no_ids(tmp_path: Path) -> None:
    step = step_with(tmp_path / "step", [1, 2], 1, 1)
    assert IdStream(None, "web").last() is IdStream(step, "other").last() is None


@pytest.mark.parametrize("found", [[2, 1], [1, 1], [3, 4, 2]])
def test_unsorted_ids_are_an_error(tmp_path: Path, found: list[int]) -> None:
    with pytest.raises(CorruptError, match="not strictly ascending"):
        list(side_by_side([IdStream(step_with(tmp_path / "step", found, 1, 1), "web")]))


def test_keys_sort_like_hex_digits() -> None:
    hexes = sorted(f"{value:032x}" for value in (0, 1, 255, 256, 2**64, 2**127, 2**128 - 1, 2**120))
    keys = keys_of(pa.chunked_array([hexes]))
    assert (np.sort(keys) == keys).all()
