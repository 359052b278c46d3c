"""Phase `settle-<i>`: decides which documents of block i of each giant component are duplicates. The task replays the
sequential rule: it arranges its documents in survivor order, and judges them like phase `verify`, except that the
outcomes of comparisons with documents of earlier blocks come from the answers of the probes. It writes the verdicts
and, for the probes of later blocks, a list of the retained documents.

Memory: as that of phase `verify`. Scratch space: one block and its answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.dedup.giants.work import Settled, SettleWork
from datakit.dedup.phase_data import Shared
from datakit.dedup.verification.arrays import NONE
from datakit.dedup.verification.rules import MEASURES, Rules
from datakit.dedup.verification.verify import EXCHANGE, VERDICT, WRITTEN_DOCUMENTS
from datakit.engine.exchange.exchange import ExchangeWriter, read_buckets
from datakit.engine.exchange.row_buckets import bucket_of
from datakit.engine.task import TaskContext, TaskResult

if TYPE_CHECKING:  # importing it would load numba
    from datakit.dedup.verification.arrange import Arranged


def settle(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the verdicts on the documents of a block, and the list of those that are retained."""
    from datakit.dedup.giants.earlier_answers import earlier_answers  # imported here, so that planning needs no numba
    from datakit.dedup.giants.retained import retained_rows
    from datakit.dedup.verification.arrange import arrange
    from datakit.dedup.verification.run_kernels import verify

    work, common, scratch = msgspec.convert(arguments, SettleWork), msgspec.convert(shared, Shared), context.scratch
    tables = list(read_buckets(context.step_directory, common.runs, work.bucket, work.bucket + 1, scratch))
    if not tables:
        return TaskResult(details=msgspec.to_builtins(Settled([], [], 0, 0)))
    known, size = arrange(tables, common.prefer, scratch), sum(table.nbytes for table in tables)
    answers = list(read_buckets(context.step_directory, work.answers, 0, 1, scratch))
    earlier = earlier_answers(answers, known, work.number, scratch)
    size += sum(table.nbytes for table in answers)
    del tables, answers
    rules = Rules(common.threshold, MEASURES.index(common.measure), common.max_comparisons)
    found = verify(known.documents, rules, scratch, lambda done: context.report(done, 0), earlier)
    removed, key = 0, f"block-{work.bucket:05d}"
    with ExchangeWriter(context, EXCHANGE, key, common.buckets.count, 64 << 20) as verdicts:
        for table in _verdicts(known, earlier.words, found[0], found[1], work):
            verdicts.write(table, bucket_of(table["row"].to_numpy(), common.buckets))
            removed += table.num_rows
    with ExchangeWriter(context, f"retained-{work.number}", f"{work.bucket:05d}", 1, 64 << 20) as retained:
        for table in retained_rows(known, earlier, found[0], scratch):
            retained.write(table, np.zeros(table.num_rows, np.int64))
    details = msgspec.to_builtins(Settled(verdicts.runs, retained.runs, len(known.row), removed))
    counters = {f"dedup/{name}": count for name, count in found[2].items()}
    outputs = verdicts.outputs + retained.outputs
    return TaskResult(outputs, counters, details, records=len(known.row), bytes_read=size)


def _verdicts(
    known: Arranged, words: np.ndarray, representative: np.ndarray, jaccard: np.ndarray, work: SettleWork
) -> Iterator[pa.Table]:
    """Yield the verdicts on the removed documents. words: the outcomes, some of which are hits in earlier blocks."""
    from datakit.dedup.verification.kernels import KNOWN_HIT

    for first in range(0, len(representative), WRITTEN_DOCUMENTS):
        gone = first + np.flatnonzero(representative[first : first + WRITTEN_DOCUMENTS] != NONE)
        kept, here = representative[gone], representative[gone] >= 0
        names = np.empty((3, len(gone)), np.uint64)
        names[:, here] = [name[kept[here]] for name in (known.row, known.high, known.low)]
        hits = KNOWN_HIT - kept[~here]
        names[:, ~here] = [words[hits + place] for place in (3, 1, 2)]
        cluster = [np.full(len(gone), half, np.uint64) for half in (work.high, work.low)]
        columns = [known.row[gone], known.high[gone], known.low[gone], *cluster, *names, jaccard[gone]]
        yield pa.table(columns, schema=VERDICT)
