"""Phase `probe-<j>`: compares the documents of each later block of a giant component with the documents retained in
block j, once block j is settled. All these tasks are independent of one another. Each writes what the settling of its
block needs to know: for each document, the outcomes of the comparisons with its candidates in block j and, for each of
its band keys, how many documents are retained in the blocks up to j.

A comparison that the replay does not reach is not counted. Memory and scratch space: see `prober.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from datakit.dedup.giants.work import ProbeWork
from datakit.dedup.phase_data import Runs, Shared
from datakit.dedup.verification.rules import MEASURES, Rules
from datakit.engine.exchange.exchange import ExchangeWriter, read_buckets
from datakit.engine.task import TaskContext, TaskResult


def probe(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the answers about the documents of one block."""
    from datakit.dedup.giants.prober import Block, Prober  # imported here, so that planning need not load numba

    work, common = msgspec.convert(arguments, ProbeWork), msgspec.convert(shared, Shared)
    sources = [(common.runs, work.bucket), (common.runs, work.earlier), (work.retained, 0)]
    batches, earlier, retained = (
        [batch for table in read_buckets(context.step_directory, runs, bucket, bucket + 1, context.scratch)
         for batch in table.to_batches()]
        for runs, bucket in sources
    )  # fmt: skip
    if not batches or not retained:
        return TaskResult(details=msgspec.to_builtins(Runs([])))
    size = sum(batch.nbytes for some in (batches, earlier, retained) for batch in some)
    rules = Rules(common.threshold, MEASURES.index(common.measure), common.max_comparisons)
    prober, number = Prober(Block(earlier, retained), batches, rules, context.scratch), 0
    with ExchangeWriter(context, work.exchange, work.key, 1, 64 << 20) as writer:
        for batch in batches:
            for table in prober.answers(batch, number):
                writer.write(table, np.zeros(table.num_rows, np.int64))
            number += batch.num_rows
            context.report(number, 0)
    details = msgspec.to_builtins(Runs(writer.runs))
    counters = {"dedup/candidates": prober.candidates}
    return TaskResult(writer.outputs, counters, details, records=number, bytes_read=size)
