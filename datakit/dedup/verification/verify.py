"""Phase `verify`: prepares the documents of one bucket of components for the kernels, and writes the kernels' verdicts
and the cluster sizes. All arrays that grow with the number of documents are memory-mapped scratch files (`arrange.py`,
`run_kernels.py`), so only the scratch space limits the number of documents in a component. Each verdict is routed by
the number of the removed row.

Memory: 32 bytes per component, about 150 MiB to sort documents in blocks, and the exchange writer's budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.dedup.phase_data import Judged, Shared
from datakit.dedup.verification.arrays import NONE
from datakit.dedup.verification.rules import MEASURES, Rules
from datakit.engine.exchange.exchange import ExchangeWriter, read_buckets
from datakit.engine.exchange.row_buckets import bucket_of
from datakit.engine.task import TaskContext, TaskResult
from datakit.storage.ids import ids_to_arrow

EXCHANGE = "verdicts-by-row"  # the name of the exchange that holds the verdicts
ROWS = ("row", "high", "low", "cluster_high", "cluster_low", "kept_row", "kept_high", "kept_low")
VERDICT = pa.schema([*((name, pa.uint64()) for name in ROWS), ("jaccard", pa.float64())])
WRITTEN_DOCUMENTS = 1 << 17  # documents whose verdicts are written at once
LARGEST = 10  # maximum length of the list of the largest clusters, in a task's result and in the report


def judge(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the verdicts on the documents in one bucket of components."""
    from datakit.dedup.verification.arrange import arrange  # imported here, so that planning need not load numba
    from datakit.dedup.verification.run_kernels import verify

    bucket, common = arguments["bucket"], msgspec.convert(shared, Shared)
    tables = list(read_buckets(context.step_directory, common.runs, bucket, bucket + 1, context.scratch))
    if not tables:
        return TaskResult(details=msgspec.to_builtins(Judged([], {}, [])))
    known = arrange(tables, common.prefer, context.scratch)
    documents, size = known.documents, sum(table.nbytes for table in tables)
    del tables
    rules = Rules(common.threshold, MEASURES.index(common.measure), common.max_comparisons)
    representative, jaccard, counts = verify(documents, rules, context.scratch, lambda done: context.report(done, 0))
    smallest = documents.by_rank[np.minimum.reduceat(documents.rank, documents.starts[:-1])]
    clusters, sizes = (known.high[smallest], known.low[smallest]), np.diff(documents.starts)
    removed = np.zeros(len(sizes), np.int64)
    with ExchangeWriter(context, EXCHANGE, f"{bucket:05d}", common.buckets.count, 64 << 20) as writer:
        for component, gone, kept in _removals(documents.starts, representative):
            removed += np.bincount(component, minlength=len(sizes))
            names = (known.row, known.high, known.low)
            columns = [*(name[gone] for name in names), *(half[component] for half in clusters)]
            columns += [*(name[kept] for name in names), jaccard[gone]]
            writer.write(pa.table(columns, schema=VERDICT), bucket_of(columns[0], common.buckets))
    retained = sizes - removed
    details = msgspec.to_builtins(Judged(writer.runs, *_describe(sizes, retained, *clusters)))
    counters = {f"dedup/{name}": count for name, count in counts.items()}
    return TaskResult(writer.outputs, counters, details, records=len(known.row), bytes_read=size)


def _removals(starts: np.ndarray, representative: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the removed documents, block by block: the component, position and representative of each, int64."""
    for first in range(0, len(representative), WRITTEN_DOCUMENTS):
        gone = first + np.flatnonzero(representative[first : first + WRITTEN_DOCUMENTS] != NONE)
        yield np.searchsorted(starts, gone, "right") - 1, gone, representative[gone]


def _describe(
    sizes: np.ndarray, retained: np.ndarray, high: np.ndarray, low: np.ndarray
) -> tuple[dict[str, int], list[tuple[int, int, str]]]:
    powers, counts = np.unique(np.floor(np.log2(sizes)).astype(np.int64), return_counts=True)
    largest = np.lexsort((low, high, -sizes))[:LARGEST]
    ids = ids_to_arrow(high[largest], low[largest]).to_pylist()
    histogram = {str(2 ** int(power)): int(count) for power, count in zip(powers, counts, strict=True)}
    return histogram, [(int(sizes[i]), int(retained[i]), name) for i, name in zip(largest, ids, strict=True)]
