"""Phase `blocks`: cuts the rows of each giant component, in survivor order, into blocks, and routes each row to the
bucket of its block.

Cost: one copy of the rows. Memory: the budget of the exchange writer, and a few numbers for each row of a run.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.dedup.giants.work import CutShared
from datakit.dedup.phase_data import Runs
from datakit.dedup.survivor_cuts import blocks_of, survivor_words
from datakit.engine.exchange.exchange import ExchangeWriter, read_buckets
from datakit.engine.task import TaskContext, TaskResult

EXCHANGE = "blocks"  # the name of the exchange
CUT_ROWS = 1 << 16  # rows whose blocks are found at a time


def cut(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Route the rows of one bucket of the exchange of giant components."""
    common, bucket = msgspec.convert(shared, CutShared), arguments["bucket"]
    records = size = 0
    with ExchangeWriter(context, EXCHANGE, f"{bucket:05d}", common.blocks, 128 << 20) as writer:
        for table in read_buckets(context.step_directory, common.runs, bucket, bucket + 1, context.scratch):
            for first in range(0, table.num_rows, CUT_ROWS):
                rows = table.slice(first, CUT_ROWS)
                writer.write(rows, _buckets(rows, common))
            records, size = records + table.num_rows, size + table.nbytes
            context.report(records, size)
    return TaskResult(writer.outputs, details=msgspec.to_builtins(Runs(writer.runs)), records=records, bytes_read=size)


def _buckets(rows: pa.Table, common: CutShared) -> np.ndarray:
    """Return the bucket of the block of each row: int64 [N]."""
    columns = {name: rows[name].to_numpy() for name in rows.column_names if name not in ("keys", "shingles")}
    words, found = survivor_words(common.prefer, columns), np.zeros(rows.num_rows, np.int64)
    for giant in common.cut:
        here = np.flatnonzero(columns["component"] == giant.component)
        found[here] = giant.first + blocks_of(words[:, here], giant.splitters)
    return found
