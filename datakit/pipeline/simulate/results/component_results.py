"""Simulates the tasks that find the components of dedup's forests: one task, or rounds of stars.

After each round, the share `Corpus.left` of the nodes remains, with one edge per node.
"""

from __future__ import annotations

import msgspec

from datakit.dedup.clusters.labels import EXCHANGE as LABELS
from datakit.dedup.clusters.pairs import PAIR_BYTES, WRITER_BYTES
from datakit.dedup.phase_data import Labelled, Reduced, Runs
from datakit.engine.task import Task, TaskResult
from datakit.pipeline.simulate.corpus import share
from datakit.pipeline.simulate.document_counts import clustered
from datakit.pipeline.simulate.effects import (
    Effect,
    Exchange,
    PhaseOf,
    Reading,
    Run,
    Written,
    parquet_reads,
    read_runs,
    write_runs,
)

LAST_NODES = 1000  # if fewer nodes would remain after a round, none remain


def label(about: PhaseOf) -> Run:
    """Simulate the task that joins all forests."""
    buckets = about.phase.shared["rows"]["count"]

    def run(task: Task) -> Effect:
        rows = clustered(about)
        written = write_runs(about, LABELS, "all", buckets, rows=rows, size=rows * PAIR_BYTES, budget=WRITER_BYTES)
        reads = _forest_reads(task, len(task.arguments["forests"]))
        return _labelled(about, written, rows, Reading(reads, task.input_bytes))

    return run


def _forest_reads(task: Task, files: int) -> int:
    """Return the number of requests that read the files of some forests."""
    return files * parquet_reads(task.input_bytes // max(1, files))


def link(about: PhaseOf) -> Run:
    """Simulate the routing of the edges of some forests, in both directions."""

    def run(task: Task) -> Effect:
        work, rows = task.arguments, 2 * task.input_bytes // PAIR_BYTES
        written = _pairs(about, "links", work["name"], work["buckets"], rows)
        result = TaskResult(
            written.outputs, details=msgspec.to_builtins(Runs(written.runs)), bytes_read=task.input_bytes
        )
        return Effect(
            result, _forest_reads(task, len(work["forests"])), len(written.outputs), task.input_bytes, written.bytes
        )

    return run


def large(about: PhaseOf) -> Run:
    """Simulate large-star on a range of buckets: it writes about as many pairs as it reads."""
    shared, count = about.phase.shared, len(about.phase.tasks)
    exchange = about.world.exchange(about.step, shared["runs"])

    def run(task: Task) -> Effect:
        rows, reading = exchange.rows // count, _twice(about, exchange, task)
        written = _pairs(about, f"large-{shared['number']}", task.key, shared["buckets"], rows)
        result = TaskResult(written.outputs, details=msgspec.to_builtins(Runs(written.runs)), bytes_read=reading.bytes)
        return Effect(result, reading.reads, len(written.outputs), reading.bytes, written.bytes)

    return run


def small(about: PhaseOf) -> Run:
    """Simulate small-star on a range of buckets, and the retirement of leaves."""
    shared, count = about.phase.shared, len(about.phase.tasks)
    exchange, number = about.world.exchange(about.step, shared["runs"]), shared["number"]
    before, after = nodes_left(about, number - 1), nodes_left(about, number)
    places = {task.key: place for place, task in enumerate(about.phase.tasks)}

    def run(task: Task) -> Effect:
        place, reading = places[task.key], _twice(about, exchange, task)
        edges, retired = share(after, place, count), share(before - after, place, count)
        stays = _pairs(about, f"small-{number}", task.key, shared["buckets"], 2 * edges)
        leaves = _pairs(about, f"retired-{number}", task.key, shared["buckets"], retired)
        details = msgspec.to_builtins(Reduced(stays.runs, edges, leaves.runs, retired))
        outputs = stays.outputs + leaves.outputs
        result = TaskResult(outputs, details=details, bytes_read=reading.bytes)
        return Effect(result, reading.reads, len(outputs), reading.bytes, stays.bytes + leaves.bytes)

    return run


def finish(about: PhaseOf) -> Run:
    """Simulate the task that joins the remaining edges."""
    shared = about.phase.shared
    exchange = about.world.exchange(about.step, shared["runs"])

    def run(task: Task) -> Effect:
        rows = nodes_left(about, shared["number"] - 1)
        reading = read_runs(exchange, len(shared["runs"]), 1.0)
        written = _pairs(about, f"labels-{shared['number']}", "all", shared["buckets"], rows)
        result = TaskResult(written.outputs, details=msgspec.to_builtins(Runs(written.runs)), bytes_read=reading.bytes)
        return Effect(result, reading.reads, len(written.outputs), reading.bytes, written.bytes)

    return run


def resolve(about: PhaseOf) -> Run:
    """Simulate the labelling of the nodes that a round after the first one retired."""
    shared, count = about.phase.shared, len(about.phase.tasks)
    rows = nodes_left(about, shared["number"] - 1)
    places = {task.key: place for place, task in enumerate(about.phase.tasks)}

    def run(task: Task) -> Effect:
        reading = _retired_and_labels(about, task)
        mine = share(rows, places[task.key], count)
        written = _pairs(about, f"labels-{shared['number']}", task.key, shared["buckets"], mine)
        result = TaskResult(written.outputs, details=msgspec.to_builtins(Runs(written.runs)), bytes_read=reading.bytes)
        return Effect(result, reading.reads, len(written.outputs), reading.bytes, written.bytes)

    return run


def label_parts(about: PhaseOf) -> Run:
    """Simulate the labelling of the nodes of the first round, and the routing of all labels by row."""
    shared, count, nodes = about.phase.shared, len(about.phase.tasks), clustered(about)
    buckets = shared["rows"]["count"]
    places = {task.key: place for place, task in enumerate(about.phase.tasks)}

    def run(task: Task) -> Effect:
        rows = share(nodes, places[task.key], count)
        written = write_runs(about, LABELS, task.key, buckets, rows=rows, size=rows * PAIR_BYTES, budget=WRITER_BYTES)
        return _labelled(about, written, rows, _retired_and_labels(about, task))

    return run


def nodes_left(about: PhaseOf, number: int) -> int:
    """Return the number of nodes that remain after this many rounds."""
    left = int(clustered(about) * about.corpus.left**number)
    return left if left >= LAST_NODES or not number else 0


def _labelled(about: PhaseOf, written: Written, rows: int, reading: Reading) -> Effect:
    clusters = int(rows / about.corpus.cluster_size)
    giant = int(rows * about.corpus.giant)
    large = [(0, giant)] if giant >= about.phase.shared["large"] else []
    details = msgspec.to_builtins(Labelled(written.runs, rows, clusters, large))
    counters = {"dedup/clustered": rows, "dedup/clusters": clusters}
    result = TaskResult(written.outputs, counters, details, records=rows, bytes_read=reading.bytes)
    return Effect(result, reading.reads, len(written.outputs), reading.bytes, written.bytes)


def _pairs(about: PhaseOf, name: str, key: str, buckets: int, rows: int) -> Written:
    return write_runs(about, name, key, buckets, rows=rows, size=rows * PAIR_BYTES, budget=WRITER_BYTES)


def _range(about: PhaseOf, exchange: Exchange, runs: list[str], task: Task) -> Reading:
    first, stop, buckets = task.arguments["first"], task.arguments["stop"], about.phase.shared["buckets"]
    return read_runs(exchange, len(runs), (stop - first) / buckets, first / buckets)


def _twice(about: PhaseOf, exchange: Exchange, task: Task) -> Reading:
    reading = _range(about, exchange, about.phase.shared["runs"], task)
    return Reading(2 * reading.reads, 2 * reading.bytes)


def _retired_and_labels(about: PhaseOf, task: Task) -> Reading:
    found = [
        _range(about, about.world.exchange(about.step, about.phase.shared[name]), about.phase.shared[name], task)
        for name in ("runs", "labels")
    ]
    return Reading(sum(one.reads for one in found), sum(one.bytes for one in found))
