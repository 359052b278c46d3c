"""Implements the tasks of the rounds that find components if one task cannot hold all nodes: `link` routes the buckets'
forests, `large` and `small` perform one round (see `stars.py`), and `finish` joins the remaining edges when their nodes
fit into one task.

Pairs (node, other) are routed by the row number of the node, whose bits are mixed. A task reads a range of buckets
twice: first to find each node's smallest neighbor, then to write the new edges piece by piece. It holds a table of its
distinct nodes, one piece of edges, and the buffers of the exchange writers. So its memory depends neither on the number
of edges nor on the degree of a node. Disk: the edges of a phase replace those of the phase before; the edges of retired
nodes (16 bytes per node) are kept until their labels are known.
"""

from __future__ import annotations

from typing import Any

import msgspec

from datakit.dedup.clusters.pairs import WRITER_BYTES, PairReader, pair_writer, pairs_result, write_pairs
from datakit.dedup.phase_data import BucketRange, Forests, Reduced, Round, Runs
from datakit.engine.exchange.exchange import ExchangeWriter
from datakit.engine.task import TaskContext, TaskResult


def link(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Route the edges of some forests, in both directions."""
    from datakit.dedup.clusters import stars  # imported here, so that planning need not load numba
    from datakit.dedup.clusters.components import spanning_forest

    work, reader = msgspec.convert(arguments, Forests), PairReader(context)
    with ExchangeWriter(context, "links", work.name, work.buckets, WRITER_BYTES) as writer:
        for piece in reader.forests(work.forests):
            write_pairs(writer, stars.both_directions(stars.Edges(*spanning_forest(*piece))), work.buckets)
    return pairs_result(reader, (writer,), Runs(writer.runs))


def large(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Apply large-star to the nodes of a range of buckets."""
    from datakit.dedup.clusters import stars
    from datakit.dedup.clusters.node_tables import Neighborhoods

    work, common = msgspec.convert(arguments, BucketRange), msgspec.convert(shared, Round)
    reader, hoods = PairReader(context), Neighborhoods()
    for piece in reader.runs(common.runs, work.first, work.stop):
        hoods.fold(*piece)
    with pair_writer(context, f"large-{common.number}", work, common) as writer:
        for piece in reader.runs(common.runs, work.first, work.stop):
            write_pairs(writer, stars.with_marks(stars.large_star(hoods, *piece)), common.buckets)
    return pairs_result(reader, (writer,), Runs(writer.runs))


def small(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Apply small-star to the nodes of a range of buckets, and retire the nodes that are now leaves."""
    from datakit.dedup.clusters import stars
    from datakit.dedup.clusters.node_tables import Neighborhoods

    work, common = msgspec.convert(arguments, BucketRange), msgspec.convert(shared, Round)
    reader, hoods, edges, nodes = PairReader(context), Neighborhoods(), 0, 0
    for piece in reader.runs(common.runs, work.first, work.stop):
        hoods.fold(*piece)
    names = (f"small-{common.number}", f"retired-{common.number}")
    with pair_writer(context, names[0], work, common) as writer, pair_writer(context, names[1], work, common) as leaver:
        for piece in reader.runs(common.runs, work.first, work.stop):
            moved = stars.small_star(hoods, *piece)
            write_pairs(writer, stars.both_directions(moved), common.buckets)
            edges += len(moved.node)
        for piece in hoods.pieces():
            stays, retired = stars.divide(*piece)
            write_pairs(writer, stars.both_directions(stays), common.buckets)
            write_pairs(leaver, (retired.smaller, retired.node), common.buckets)
            edges, nodes = edges + len(stays.node), nodes + len(retired.node)
    return pairs_result(reader, (writer, leaver), Reduced(writer.runs, edges, leaver.runs, nodes))


def finish(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Join the edges that remain after the last round, and route a pair (node, label) for each of their nodes."""
    from datakit.dedup.clusters.node_tables import Components

    common, reader, components = msgspec.convert(shared, Round), PairReader(context), Components()
    for node, other in reader.runs(common.runs, 0, common.buckets):
        once = other < node
        components.join(node[once], other[once])
    with ExchangeWriter(context, f"labels-{common.number}", f"{common.memory}", common.buckets, WRITER_BYTES) as writer:
        for piece in components.pieces():
            write_pairs(writer, piece, common.buckets)
    return pairs_result(reader, (writer,), Runs(writer.runs))
