"""Phase `labels`: writes the component of every clustered document. A component's label is its smallest row.

If all forests fit into one task, `label` joins them. Otherwise, `rounds.py` retires nodes round by round, and the tasks
here resolve the rounds in reverse order: a retired node gets the label of the node to which its only edge leads, and
that node has been labelled before. `resolve` does this for every round except the first, which `label_parts` resolves
last. Each document's label is routed by the document's row number (`row_buckets.py`), so later tasks read only the
labels of their own documents and of a few others. The tasks of the phase also count the documents of large components,
because giant components are judged by more than one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.dedup.clusters.large_components import LargeComponents
from datakit.dedup.clusters.pairs import (
    WRITER_BYTES,
    PairReader,
    Pairs,
    pair_writer,
    pairs_result,
    task_key,
    write_pairs,
)
from datakit.dedup.phase_data import BucketRange, Forests, Labelled, PartRange, Round, Runs, Shared
from datakit.dedup.row_buckets import read_rows
from datakit.engine.exchange.exchange import ExchangeWriter
from datakit.engine.exchange.row_buckets import bucket_of
from datakit.engine.task import TaskContext, TaskResult

EXCHANGE = "labels-by-row"  # the name of the exchange that holds the labels of all clustered rows
LABELS = pa.schema([("row", pa.uint64()), ("component", pa.uint64())])


def label(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Join all forests, and route a pair (row, component) for each clustered row, by row number."""
    work, reader = msgspec.convert(arguments, Forests), PairReader(context)
    labels = _joined(reader.forests(work.forests))
    return _by_row(labels, msgspec.convert(shared, Round), work.name, reader, context)


def _joined(pieces: Iterator[Pairs]) -> Iterator[Pairs]:
    """Yield the pairs (row, component) of all edges. A single piece needs neither a table nor the kernels of tables."""
    first, second = next(pieces), next(pieces, None)
    if second is None:
        from datakit.dedup.clusters.components import spanning_forest  # here, so that planning need not load numba

        rows, components = spanning_forest(*first)
        smallest = np.unique(components)
        yield smallest, smallest
        yield rows, components
        return
    from datakit.dedup.clusters.node_tables import Components

    table = Components()
    for piece in chain((first, second), pieces):
        table.join(*piece)
    yield from table.pieces()


def resolve(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Label the nodes that a round retired, and route them to buckets, together with the nodes labelled before."""
    work, common, reader = msgspec.convert(arguments, BucketRange), msgspec.convert(shared, Round), PairReader(context)
    with pair_writer(context, f"labels-{common.number}", work, common) as writer:
        for piece in _resolved(reader, work, common):
            write_pairs(writer, piece, common.buckets)
    return pairs_result(reader, (writer,), Runs(writer.runs))


def label_parts(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Label the nodes that the first round retired, and route all nodes of a range of buckets by row number."""
    work, common, reader = msgspec.convert(arguments, BucketRange), msgspec.convert(shared, Round), PairReader(context)
    return _by_row(_resolved(reader, work, common), common, task_key(work, common), reader, context)


def _resolved(reader: PairReader, work: BucketRange, common: Round) -> Iterator[Pairs]:
    """Yield a pair (node, label) for each node in a range of buckets."""
    from datakit.dedup.clusters.node_tables import Neighborhoods

    labels = Neighborhoods()  # a label is at most its node, so the table finds it as the smallest neighbor
    for piece in reader.runs(common.labels, work.first, work.stop):
        labels.fold(*piece)
    for towards, retired in reader.runs(common.runs, work.first, work.stop):
        labels.fold(towards, towards)  # a node without a label is the smallest of its component
        yield retired, labels.smallest(towards)
    for nodes, smallest, _ in labels.pieces():
        yield nodes, smallest


def _by_row(pieces: Iterable[Pairs], common: Round, key: str, reader: PairReader, context: TaskContext) -> TaskResult:
    clustered, clusters, large = 0, 0, LargeComponents(common.large)
    with ExchangeWriter(context, EXCHANGE, key, common.rows.count, WRITER_BYTES) as writer:
        for rows, components in pieces:
            writer.write(pa.table([rows, components], schema=LABELS), bucket_of(rows, common.rows))
            large.add(components)
            clustered, clusters = clustered + len(rows), clusters + int((rows == components).sum())
    counters = {"dedup/clustered": clustered, "dedup/clusters": clusters}
    details = msgspec.to_builtins(Labelled(writer.runs, clustered, clusters, large.found()))
    return TaskResult(writer.outputs, counters, details, records=clustered, bytes_read=reader.rows * 16)


def labelled_rows(shared: Shared, context: TaskContext, parts: PartRange) -> tuple[np.ndarray, np.ndarray]:
    """Return the clustered rows in these parts, in ascending order, and the component of each; both uint64."""
    tables = list(read_rows(shared.runs, shared.buckets, parts, context))
    labels = pa.concat_tables([LABELS.empty_table(), *tables])
    rows, components = labels["row"].to_numpy(), labels["component"].to_numpy()
    order = np.argsort(rows)
    return rows[order], components[order]
