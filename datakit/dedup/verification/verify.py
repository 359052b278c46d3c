"""Phase `verify`: prepares the documents of one bucket of components for the kernels, and writes the kernels' verdicts
and the cluster sizes. Shingles and band keys are in memory-mapped files, whose size is limited only by scratch space.
All other columns are kept in memory, at about 250 bytes per document. Each verdict is routed to the part that holds the
removed row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.dedup.partitions import part_of, power_of_two
from datakit.dedup.phase_data import Judged, Shared
from datakit.dedup.survivors import survivor_order
from datakit.dedup.verification.rules import MEASURES, Rules
from datakit.engine.exchange.exchange import ExchangeWriter, read_buckets
from datakit.engine.task import TaskContext, TaskResult
from datakit.storage.ids import ids_to_arrow

ROWS = ("row", "high", "low", "cluster_high", "cluster_low", "kept_row", "kept_high", "kept_low")
VERDICT = pa.schema([*((name, pa.uint64()) for name in ROWS), ("jaccard", pa.float64())])
LARGEST = 10  # maximum length of the list of the largest clusters, in a task's result and in the report


def judge(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the verdicts on the documents in one bucket of components."""
    from datakit.dedup.verification.kernels import NONE  # imported here, so that planning need not load numba
    from datakit.dedup.verification.run_kernels import verify

    bucket, common = arguments["bucket"], msgspec.convert(shared, Shared)
    tables = list(read_buckets(context.step_directory, common.runs, bucket, bucket + 1, context.scratch))
    if not tables:
        return TaskResult(details=msgspec.to_builtins(Judged([], {}, [])))
    known = _known(tables)
    order = survivor_order(common.prefer, known)
    known = {name: values[order] for name, values in known.items()}
    documents = _documents(tables, order, known, context.scratch)
    rules = Rules(common.threshold, MEASURES.index(common.measure), common.max_comparisons)
    representative, jaccard, counts = verify(documents, rules, context.scratch)
    clusters = _smallest_ids(known, documents.starts)
    sizes, gone = np.diff(documents.starts), np.flatnonzero(representative != NONE)
    cluster = [np.repeat(half, sizes)[gone] for half in clusters]
    rows, kept = ([known[name][at] for name in ("row", "high", "low")] for at in (gone, representative[gone]))
    verdicts = pa.table([*rows, *cluster, *kept, jaccard[gone]], schema=VERDICT)
    buckets = power_of_two(len(common.parts))
    with ExchangeWriter(context, "verdicts", f"{bucket:05d}", buckets, 64 << 20) as writer:
        writer.write(verdicts, part_of(known["row"][gone], common.parts))
    retained = np.add.reduceat((representative == NONE).astype(np.int64), documents.starts[:-1])
    details = msgspec.to_builtins(Judged(writer.runs, *_describe(sizes, retained, *clusters)))
    counters = {f"dedup/{name}": count for name, count in counts.items()}
    size = sum(table.nbytes for table in tables)
    return TaskResult(writer.outputs, counters, details, records=len(order), bytes_read=size)


def _known(tables: list[pa.Table]) -> dict[str, np.ndarray]:
    """Return, by name, the columns of all tables as arrays, except the two columns that hold lists."""
    names = [name for name in tables[0].column_names if name not in ("keys", "shingles")]
    return {name: np.concatenate([table[name].to_numpy() for table in tables]) for name in names}


def _documents(tables: list[pa.Table], order: np.ndarray, known: dict[str, np.ndarray], scratch: Path) -> Any:
    """Return the documents for the kernels; copy shingles and band keys to memory-mapped files, in survivor order."""
    from datakit.dedup.verification.kernels import Documents, copy_lists
    from datakit.dedup.verification.run_kernels import scratch_array

    shingles = [chunk for table in tables for chunk in table["shingles"].chunks]
    keys = [chunk for table in tables for chunk in table["keys"].chunks]
    bands = keys[0].type.list_size
    lengths = np.concatenate([np.diff(np.asarray(chunk.offsets)) for chunk in shingles])
    offsets = np.concatenate([[0], np.cumsum(lengths[order])])
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    values = scratch_array(scratch / "shingles", (int(offsets[-1]),), np.uint64)
    bands_of = scratch_array(scratch / "keys", (len(order), bands), np.uint64)
    first = 0
    for chunk, key_chunk in zip(shingles, keys, strict=True):
        places = place[first : first + len(chunk)]
        copy_lists(np.asarray(chunk.values), np.asarray(chunk.offsets), values, offsets, places)
        bands_of[places] = np.asarray(key_chunk.flatten()).reshape(-1, bands)
        first += len(chunk)
    by_rank = np.lexsort((known["low"], known["high"]))
    rank = np.empty(len(order), np.int64)
    rank[by_rank] = np.arange(len(order))
    starts = np.flatnonzero(np.concatenate([[True], known["component"][1:] != known["component"][:-1], [True]]))
    return Documents(starts, offsets, values, bands_of, rank, by_rank)


def _smallest_ids(known: dict[str, np.ndarray], starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the upper and lower halves of the smallest id of each component."""
    high = np.minimum.reduceat(known["high"], starts[:-1])
    is_smallest = known["high"] == np.repeat(high, np.diff(starts))
    low = np.minimum.reduceat(np.where(is_smallest, known["low"], np.uint64(2**64 - 1)), starts[:-1])
    return high, low


def _describe(
    sizes: np.ndarray, retained: np.ndarray, high: np.ndarray, low: np.ndarray
) -> tuple[dict[str, int], list[tuple[int, int, str]]]:
    powers, counts = np.unique(np.floor(np.log2(sizes)).astype(np.int64), return_counts=True)
    largest = np.lexsort((low, high, -sizes))[:LARGEST]
    ids = ids_to_arrow(high[largest], low[largest]).to_pylist()
    histogram = {str(2 ** int(power)): int(count) for power, count in zip(powers, counts, strict=True)}
    return histogram, [(int(sizes[i]), int(retained[i]), name) for i, name in zip(largest, ids, strict=True)]
