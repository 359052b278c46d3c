"""Phase `labels`: writes the component of every clustered document. A component's label is its smallest row.

If all forests fit into one task, `label` joins them. Otherwise, `rounds.py` retires nodes round by round, and the tasks
here resolve the rounds in reverse order: a retired node gets the label of the node to which its only edge leads, and
that node has been labelled before. `resolve` does this for every round except the first, which `label_parts` resolves
last. Each document's label is routed to the part that holds the document, so later tasks read only the labels of their
own documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.dedup.clusters.pairs import (
    WRITER_BYTES,
    PairReader,
    Pairs,
    pair_writer,
    pairs_result,
    task_key,
    write_pairs,
)
from datakit.dedup.partitions import Part, first_rows, part_of, power_of_two
from datakit.dedup.phase_data import BucketRange, Forests, Labelled, PartRange, Round, Runs, Shared
from datakit.engine.exchange.exchange import ExchangeWriter, read_buckets
from datakit.engine.task import TaskContext, TaskResult

LABELS = pa.schema([("row", pa.uint64()), ("component", pa.uint64())])


def label(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Join all forests, and route a pair (row, component) for each clustered row to the row's part."""
    work, reader = msgspec.convert(arguments, Forests), PairReader(context)
    labels = _joined(reader.forests(work.forests))
    return _to_parts(labels, msgspec.convert(shared, Round).parts, work.name, reader, context)


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
    """Label the nodes that the first round retired, and route all nodes of a range of buckets to their parts."""
    work, common, reader = msgspec.convert(arguments, BucketRange), msgspec.convert(shared, Round), PairReader(context)
    return _to_parts(_resolved(reader, work, common), common.parts, task_key(work, common), reader, context)


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


def _to_parts(
    pieces: Iterable[Pairs], parts: Sequence[Part], key: str, reader: PairReader, context: TaskContext
) -> TaskResult:
    clustered, clusters, first = 0, 0, first_rows(parts)
    with ExchangeWriter(context, "labels", key, power_of_two(len(parts)), WRITER_BYTES) as writer:
        for rows, components in pieces:
            writer.write(pa.table([rows, components], schema=LABELS), part_of(rows, first))
            clustered, clusters = clustered + len(rows), clusters + int((rows == components).sum())
    counters = {"dedup/clustered": clustered, "dedup/clusters": clusters}
    details = msgspec.to_builtins(Labelled(writer.runs, clustered, clusters))
    return TaskResult(writer.outputs, counters, details, records=clustered, bytes_read=reader.rows * 16)


def labelled_rows(shared: Shared, context: TaskContext, parts: PartRange) -> tuple[np.ndarray, np.ndarray]:
    """Return the clustered rows in these parts, in ascending order, and the component of each; both uint64."""
    tables = list(read_buckets(context.step_directory, shared.runs, parts.first, parts.stop, context.scratch))
    labels = pa.concat_tables([LABELS.empty_table(), *tables])
    rows, components = labels["row"].to_numpy(), labels["component"].to_numpy()
    order = np.argsort(rows)
    return rows[order], components[order]
