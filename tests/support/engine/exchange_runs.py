"""Writes and merges small runs of the exchange."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from datakit.engine.exchange import merge
from datakit.engine.exchange.exchange import ExchangeWriter, merged
from datakit.engine.task import Output, Plan, Step, TaskContext
from tests.support.engine.inline import run_plan_inline

MERGES = {  # constants that make every exchange large: coarse runs, merged by several tasks
    "datakit.engine.exchange.run_names.MOST_BUCKETS": 4,
    "datakit.engine.exchange.merge.MOST_READS": 1,
    "datakit.engine.exchange.merge.TASK_BYTES": 600,
    "datakit.engine.exchange.exchange.COMBINED_RUNS": 2,
}
PLAIN = pa.schema([("n", pa.int64()), ("text", pa.large_string())])


@dataclass
class Written:
    """The input of a map task: tables with the bucket of each row."""

    tables: list[tuple[pa.Table, np.ndarray]] = field(default_factory=list)


def write_all(directory: str, everything: list[Written], buckets: int, budget: int) -> list[str]:
    """Write the runs of map tasks; return their paths."""
    runs: list[str] = []
    for number, written in enumerate(everything):
        context = TaskContext(directory, Path(tempfile.gettempdir()))
        with ExchangeWriter(context, "route", f"{number:05d}", buckets, budget) as writer:
            for table, bucket in written.tables:
                writer.write(table, bucket)
        runs += writer.runs
    return runs


def merge_inline(directory: str, runs: list[str], buckets: int, readers: int) -> list[str]:
    """Call `merged` as a stage does, and run its tasks. Each run counts as one byte."""
    found, sizes = list[str](), dict.fromkeys(runs, 1)

    def plan() -> Plan:
        step = Step("stage", "set", directory, "0" * 32, {})
        found.extend((yield from merged(step, "route", sizes, buckets, readers)))
        return Output([], PLAIN)

    run_plan_inline(plan(), directory)
    return found


def merge_inline_always(directory: str, runs: list[str], buckets: int = 32) -> list[str]:
    """Merge runs however few they are."""
    return merge_inline(directory, runs, buckets, merge.MOST_READS // len(runs) + 1)


def some_rows(count: int, seed: int = 7, width: int = 40) -> tuple[pa.Table, np.ndarray]:
    """Make `count` rows and a bucket below 32 for each."""
    random = np.random.default_rng(seed)
    texts = ["w" * int(size) if size else None for size in random.integers(0, width, count)]
    table = pa.table({"n": np.arange(count), "text": pa.array(texts, pa.large_string())}, schema=PLAIN)
    return table, random.integers(0, 32, count)
