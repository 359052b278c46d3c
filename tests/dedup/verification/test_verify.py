"""A task judges documents by the rules and in survivor order, whatever its memory."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.dedup.phase_data import Shared
from datakit.dedup.verification import arrange, run_kernels, verify
from datakit.dedup.verification.cluster_shingles import schema
from datakit.dedup.verification.rules import Rules
from datakit.engine.exchange import sorted_blocks
from datakit.engine.exchange.exchange import ExchangeWriter, read_buckets
from datakit.engine.exchange.row_buckets import RowBuckets
from datakit.engine.task import TaskContext, TaskResult
from tests.support.dedup.verification_oracle import BANDS, Document, by_the_rules

LIMITS = {
    (sorted_blocks, "BLOCK_BYTES"): 200,
    (sorted_blocks, "WINDOW_BYTES"): 100,
    (sorted_blocks, "SAMPLE_BYTES"): 80,
    (arrange, "SORTED_ROWS"): 2,
    (run_kernels, "STEP_DOCUMENTS"): 3,
    (verify, "WRITTEN_DOCUMENTS"): 2,
}


class Clustered(NamedTuple):
    """A document, and the values that decide its position in survivor order."""

    component: int
    high: int
    low: int
    length: int
    shingles: frozenset[int]
    keys: tuple[int, ...]


@st.composite
def clustered(draw: st.DrawFn) -> list[Clustered]:
    """Draw documents of a few components, in any order."""
    ids = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=1, max_size=25, unique=True))
    found = []
    for high, low in ids:
        component, length = draw(st.sampled_from([2, 9, 40])), draw(st.integers(1, 3))
        shingles = draw(st.frozensets(st.integers(0, 9), min_size=1, max_size=8))
        keys = tuple(draw(st.integers(0, 2)) * BANDS + band + 1000 * component for band in range(BANDS))
        found.append(Clustered(component, high, low, length, shingles, keys))
    return found


def judged(documents: list[Clustered], rules: Rules, folder: Path) -> tuple[TaskResult, list[dict[str, Any]]]:
    """Write the documents to an exchange, and return the task's result and its verdicts."""
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    context = TaskContext(str(folder), scratch)
    component, high, low, length, shingles, keys = zip(*documents, strict=True)
    lists = [pa.array(keys, pa.list_(pa.uint64(), BANDS)), pa.array(map(sorted, shingles), pa.large_list(pa.uint64()))]
    numbers = [component, range(len(documents)), high, low, [0] * len(documents), length]
    with ExchangeWriter(context, "shingles", "0", 1) as writer:
        writer.write(pa.table([*map(pa.array, numbers), *lists], schema=schema(BANDS, [])), np.zeros(len(high), int))
    names = ("jaccard", "containment")
    settings = (rules.threshold, names[rules.measure], ("longest",), rules.most)
    shared = msgspec.to_builtins(
        Shared(RowBuckets(len(documents), 1), [("s", 0)], BANDS, 5, *settings, runs=writer.runs)
    )
    result = verify.judge({"bucket": 0}, shared, context)
    assert not list(scratch.iterdir()), "mapped files are unlinked"
    tables = read_buckets(str(folder), result.details["runs"], 0, 1, scratch)
    return result, [row for table in tables for row in table.to_pylist()]


@given(
    documents=clustered(),
    threshold=st.sampled_from([0.3, 0.5, 0.8]),
    measure=st.sampled_from([0, 1]),
    most=st.integers(1, 3),
)
@settings(max_examples=25)
def test_verdicts_do_not_depend_on_the_memory_of_a_task(
    documents: list[Clustered], threshold: float, measure: int, most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, rules = tmp_path_factory.mktemp("verify"), Rules(threshold, measure, most)
    with ExitStack() as stack:
        for (module, name), value in LIMITS.items():
            stack.enter_context(patch.object(module, name, value))
        result, verdicts = judged(documents, rules, folder / "small")
    whole, same_verdicts = judged(documents, rules, folder / "whole")
    assert (result, verdicts) == (whole, same_verdicts)

    ordered = sorted(documents, key=lambda one: (one.component, -one.length, one.high, one.low))
    groups: dict[int, list[Document]] = {}
    for one in ordered:
        groups.setdefault(one.component, []).append((one.high << 64 | one.low, one.shingles, one.keys))
    expected, similarities, counts = by_the_rules(list(groups.values()), rules)
    assert result.counters == {f"dedup/{name}": count for name, count in counts.items()}
    smallest = {name: min(one[0] for one in group) for name, group in groups.items()}
    assert [
        (row["row"], row["kept_row"], row["jaccard"], row["cluster_high"] << 64 | row["cluster_low"])
        for row in verdicts
    ] == [
        (documents.index(one), documents.index(ordered[kept]), similarity, smallest[one.component])
        for one, kept, similarity in zip(ordered, expected, similarities, strict=True)
        if kept >= 0
    ]
    gone = [one.component for one, kept in zip(ordered, expected, strict=True) if kept >= 0]
    sizes = {f"{smallest[name]:032x}": (len(group), len(group) - gone.count(name)) for name, group in groups.items()}
    assert {name: (size, retained) for size, retained, name in result.details["largest"]} == sizes
