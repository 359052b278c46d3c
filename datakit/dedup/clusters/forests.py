"""Phases `forests` and `labels`: merge the buckets' forests, and write the component of every clustered document.
Forests are merged in a tree of tasks. A component's label is its smallest row. The last task holds the forest of all
clustered documents in memory, which takes about 120 bytes per document. Each document's label is routed to the part
that holds the document, so later tasks read only the labels of their own documents.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.dedup.clusters.bands import write_forest
from datakit.dedup.clusters.components import spanning_forest
from datakit.dedup.partitions import part_of, power_of_two
from datakit.dedup.phase_data import Labelled, PartRange, Shared
from datakit.engine.exchange.exchange import ExchangeWriter, read_buckets
from datakit.engine.task import TaskContext, TaskResult
from datakit.storage import urls
from datakit.storage.parquet import read_shard

LABELS = pa.schema([("row", pa.uint64()), ("component", pa.uint64())])


def merge(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Merge several forests into one."""
    row, root = _merged(arguments["forests"], context)
    return write_forest(row, root, f"exchange/forest/{arguments['name']}.parquet", context)


def label(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Merge the remaining forests, and route a pair (row, component) for each clustered row to the row's part."""
    row, root = _merged(arguments["forests"], context)
    roots = np.unique(root)
    rows, components = np.concatenate([roots, row]), np.concatenate([roots, root])
    parts = msgspec.convert(shared, Shared).parts
    with ExchangeWriter(context, "labels", "all", power_of_two(len(parts))) as writer:
        writer.write(pa.table([rows, components], schema=LABELS), part_of(rows, parts))
    details = msgspec.to_builtins(Labelled(writer.runs, len(rows), len(roots)))
    counters = {"dedup/clustered": len(rows), "dedup/clusters": len(roots)}
    return TaskResult(writer.outputs, counters, details, records=len(rows))


def _merged(forests: list[str], context: TaskContext) -> tuple[np.ndarray, np.ndarray]:
    tables = [read_shard(urls.join(context.step_directory, path)) for path in forests]
    edges = pa.concat_tables(tables)
    return spanning_forest(edges["row"].to_numpy(), edges["root"].to_numpy())


def labelled_rows(shared: Shared, context: TaskContext, parts: PartRange) -> tuple[np.ndarray, np.ndarray]:
    """Return the clustered rows in these parts, in ascending order, and the component of each; both uint64."""
    tables = list(read_buckets(context.step_directory, shared.runs, parts.first, parts.stop, context.scratch))
    labels = pa.concat_tables([LABELS.empty_table(), *tables])
    rows, components = labels["row"].to_numpy(), labels["component"].to_numpy()
    order = np.argsort(rows)
    return rows[order], components[order]
