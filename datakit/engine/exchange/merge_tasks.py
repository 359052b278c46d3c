"""The task that merges runs: it reads a range of buckets from a group of runs, and writes the rows to one file."""

from __future__ import annotations

from typing import Any

import msgspec

from datakit.engine.exchange.exchange import ExchangeWriter
from datakit.engine.exchange.merge import MergeWork
from datakit.engine.exchange.read_runs import read_with_buckets
from datakit.engine.exchange.run_names import COARSE, Range, buckets_each
from datakit.engine.task import TaskContext, TaskResult

BUDGET_BYTES = 256 << 20  # memory of the writer


def merge_runs(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Merge a range of buckets of one group of runs into one file. This is a task function."""
    work = msgspec.convert(arguments, MergeWork)
    each = buckets_each(work.buckets)
    ranges = [_range(run, work, each) for run in work.runs]
    base, count = work.first * each, (work.stop - work.first) * each
    records = size = 0
    with ExchangeWriter(context, work.phase, work.key, count, BUDGET_BYTES, single=True) as writer:
        for table, bucket in read_with_buckets(context.step_directory, ranges, work.buckets, context.scratch):
            writer.write(table, bucket - base)
            records, size = records + table.num_rows, size + table.nbytes
            context.report(records, size)
    return TaskResult(writer.outputs, details={"runs": writer.runs}, records=records, bytes_read=size)


def _range(run: str, work: MergeWork, each: int) -> Range:
    """Return where the task's buckets are in a run; earlier versions wrote runs with all buckets."""
    if COARSE.search(run):
        return Range(run, work.first, work.stop, each)
    return Range(run, work.first * each, work.stop * each)
