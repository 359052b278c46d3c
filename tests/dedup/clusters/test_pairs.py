"""A bucket may consist of very many record batches: one for each run that the maps have written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pyarrow as pa
import pytest

from datakit.dedup.clusters import bands
from datakit.dedup.clusters.pairs import PairReader
from datakit.engine.exchange.exchange import ExchangeWriter
from datakit.engine.task import TaskContext


def calls_of(work: Callable[[], object]) -> int:
    """Return the number of calls of Python functions, and of steps of generators."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def read_pairs(context: TaskContext, runs: list[str]) -> None:
    (piece,) = PairReader(context).runs(runs, 0, 1)
    assert len(piece[0]) in {500, 1000}


def connect(context: TaskContext, runs: list[str]) -> None:
    bands.connect({"bucket": 0}, {"runs": runs}, context)


@pytest.mark.parametrize("work", [read_pairs, connect])
def test_the_cost_of_a_bucket_is_in_proportion_to_its_batches(
    work: Callable[[TaskContext, list[str]], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datakit.engine.exchange.exchange.WINDOW_BYTES", 1)  # one row per batch
    context, costs = TaskContext(str(tmp_path), tmp_path), list[int]()
    for rows in (500, 500, 1000):  # the first compiles kernels
        numbers = np.arange(rows, dtype=np.uint64)
        with ExchangeWriter(context, "pairs", f"{len(costs)}", 1) as writer:
            writer.write(pa.table([numbers, numbers], schema=bands.SCHEMA), np.zeros(rows, int))
        costs.append(calls_of(lambda runs=writer.runs: work(context, runs)))
    assert costs[2] < 2.5 * costs[1]
