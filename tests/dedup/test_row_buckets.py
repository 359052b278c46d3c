"""A task finds the rows of its parts, however the parts are cut, without a list of all parts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.dedup import stage
from datakit.dedup.partitions import Part
from datakit.dedup.phase_data import PartRange
from datakit.dedup.row_buckets import read_rows, row_buckets
from datakit.engine.exchange.exchange import ExchangeWriter
from datakit.engine.exchange.row_buckets import bucket_of
from datakit.engine.task import Phase, TaskContext, encode
from tests.support.dedup.dedup_inputs import dedup_step, write_source
from tests.support.dedup.made_up_texts import edited, text_of
from tests.support.engine.inline import run_task_inline


def parts_with(sizes: list[int]) -> list[Part]:
    starts = np.cumsum([0, *sizes]).tolist()
    return [Part("s", 0, i, len(sizes), starts[i], size, "", "", 0, 0) for i, size in enumerate(sizes)]


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=20), data=st.data())
@settings(max_examples=20, deadline=None)
def test_parts_get_their_rows_and_no_others(
    sizes: list[int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, parts = tmp_path_factory.mktemp("rows"), parts_with(sizes)
    buckets, context = row_buckets(parts), TaskContext(str(folder), folder)
    total = sum(sizes)
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, max(0, total - 1)))) if total else []), np.uint64)
    with ExchangeWriter(context, "x", "0", buckets.count) as writer:
        writer.write(pa.table({"row": rows}), bucket_of(rows, buckets))
    cut = data.draw(st.integers(0, len(parts)))
    for mine in filter(None, (parts[:cut], parts[cut:], *([part] for part in parts))):
        work = PartRange(parts.index(mine[0]), list(mine))
        found = [row for table in read_rows(writer.runs, buckets, work, context) for row in table["row"].to_pylist()]
        assert sorted(found) == [row for row in rows.tolist() if work.rows[0] <= row < work.rows[1]]


def test_buckets_of_the_largest_data_sets_do_not_overflow() -> None:
    buckets = replace(row_buckets(parts_with([1])), rows=1 << 43, count=1 << 20)
    last = np.array([0, (1 << 43) - 1], np.uint64)
    assert bucket_of(last, buckets).tolist() == [0, (1 << 20) - 1]


def test_shared_data_does_not_grow_with_the_number_of_parts(tmp_path: Path) -> None:
    """Nor does a task get the descriptions of parts that it does not read."""
    texts = [text_of(i, 300) for i in range(20)]
    texts += [edited(text, i) for i, text in enumerate(texts)]
    sizes = [largest_shared(tmp_path / str(bits), texts, bits) for bits in (1, 5)]
    assert sizes[1] <= sizes[0] + 64, "of 2 and 32 parts in each source; the description of a part takes over 200 bytes"


def largest_shared(folder: Path, texts: list[str], bits: int) -> int:
    """Run dedup on two sources, and return the size of the largest shared data of any phase."""
    sources = [write_source(folder, name, texts[i:], bits) for i, name in enumerate(("a", "b"))]
    step = dedup_step(folder / "dedup", sources, stage.Config(max_removal=1.0))
    plan, largest, listed = stage.plan(step), 0, Counter[str]()
    try:
        phase: Phase = next(plan)
        while True:
            largest = max(largest, len(encode(phase.shared)))
            listed[phase.name] += sum(len(task.arguments.get("parts", ())) for task in phase.tasks)
            phase = plan.send([run_task_inline(task, phase, step.directory) for task in phase.tasks])
    except StopIteration:
        parts = 2 << bits
        assert max(listed.values()) <= parts, "each part is described to one task of a phase"
        assert listed["bands"] == listed["shingles"] == listed["attributes"] == parts
        return largest
