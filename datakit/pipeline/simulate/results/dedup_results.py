"""Simulates the tasks of the stages signatures and dedup, except those that find components."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from datakit.dedup.clusters.bands import COUNTED as SKIPPED
from datakit.dedup.clusters.bands import ROW_BYTES
from datakit.dedup.exact_duplicates import EXCHANGE as COPIES
from datakit.dedup.giant_rows import EXCHANGE as GIANTS
from datakit.dedup.partitions import Part, all_parts
from datakit.dedup.phase_data import Described, ForestFiles, Judged, PartRange, Routed, Runs, Shared
from datakit.dedup.phase_data import Written as Removed
from datakit.dedup.survivor_cuts import SAMPLES
from datakit.dedup.verification.rules import COUNTED
from datakit.dedup.verification.verify import EXCHANGE as VERDICTS
from datakit.dedup.verification.verify import LARGEST
from datakit.engine.exchange.row_buckets import RowBuckets, bucket_of
from datakit.engine.task import OutputFile, Task, TaskResult
from datakit.pipeline.simulate.corpus import share
from datakit.pipeline.simulate.document_counts import clustered, copies_in, giant_rows, near_copies_in
from datakit.pipeline.simulate.effects import (
    CHECKSUM,
    Effect,
    Exchange,
    PhaseOf,
    Reading,
    Run,
    parquet_reads,
    read_runs,
    write_runs,
)
from datakit.storage.ids import partition_name
from datakit.storage.manifest import data_path

COPY_BYTES, VERDICT_BYTES = 32, 72  # bytes of a row of these exchanges
DOCUMENT_BYTES = 200  # bytes of a row of the exchange of shingles, beside the shingles
FOREST_EDGE_BYTES = 10  # in a Parquet file


def sign_partition(about: PhaseOf) -> Run:
    """Simulate the signatures of a partition."""
    (source,) = about.step.inputs_of("normalize")
    partitions = source.manifest.partitions
    sizes = about.corpus.signature_sizes.get(about.step.dataset, ())

    def run(task: Task) -> Effect:
        part = partitions[int(task.key)]
        known = len(sizes) == len(partitions)
        size = sizes[int(task.key)] if known else 2000 + about.corpus.signature_bytes * part.rows
        skipped = int(part.rows * about.corpus.skipped)
        counters = {"signatures/documents": part.rows, "signatures/shingles": task.input_bytes // 6,
                    "signatures/too_short": skipped, "signatures/saturated": 0,
                    "signatures/quarantined": 0}  # fmt: skip
        output = OutputFile(task.arguments["path"], size, CHECKSUM, part.rows)
        result = TaskResult((output,), counters, records=part.rows, bytes_read=task.input_bytes)
        return Effect(result, parquet_reads(part.bytes, task.input_bytes), 1, part.bytes)

    return run


def check_tables(about: PhaseOf) -> Run:
    """Simulate the check of the columns of scores, which reads one footer for each."""
    return lambda task: Effect(TaskResult(), sum(2 * len(mine) for mine in task.arguments["tables"].values()), 0, 0)


def find_copies(about: PhaseOf) -> Run:
    """Simulate the search for texts that several sources contain."""
    parts, count, buckets = all_parts(about.step), len(about.phase.tasks), _buckets(about).count
    rows, copies = sum(part.rows for part in parts), sum(copies_in(about.corpus, part) for part in parts)
    signature_bytes = sum(part.signature_bytes for part in parts)

    def run(task: Task) -> Effect:
        number = task.arguments["range"]
        reads = sum(parquet_reads(part["signature_bytes"]) for part in task.arguments["parts"])
        mine, gone = share(rows, number, count), share(copies, number, count)
        written = write_runs(about, COPIES, task.key, buckets, rows=gone, size=gone * COPY_BYTES, budget=64 << 20)
        read = signature_bytes * 34 // about.corpus.signature_bytes // count
        result = TaskResult(written.outputs, details=_runs(written.runs), records=mine, bytes_read=mine * 32)
        return Effect(result, reads, len(written.outputs), read,
                      written.bytes)  # fmt: skip

    return run


def route_bands(about: PhaseOf) -> Run:
    """Simulate the routing of band keys."""
    shared, corpus = about.phase.shared, about.corpus
    exact, buckets = shared["exact_runs"], _buckets(about)
    copies = about.world.exchange(about.step, exact)

    def run(task: Task) -> Effect:
        work = msgspec.convert(task.arguments, PartRange)
        mine = work.parts
        rows = sum(part.rows for part in mine)
        skipped = int(rows * corpus.skipped)
        keys = shared["bands"] * max(0, rows - skipped - sum(copies_in(corpus, part) for part in mine))
        written = write_runs(about, "bands", task.key, work.buckets, rows=keys, size=keys * ROW_BYTES, budget=128 << 20)
        known = _read_rows(copies, len(exact), buckets, work)
        read = sum(part.signature_bytes for part in mine)
        reads = known.reads + sum(parquet_reads(part.signature_bytes) for part in mine)
        counters = dict.fromkeys(SKIPPED, 0) | {"dedup/too_short": skipped}
        result = TaskResult(written.outputs, counters, _runs(written.runs), records=rows, bytes_read=read)
        return Effect(result, reads, len(written.outputs), read + known.bytes, written.bytes)

    return run


def connect(about: PhaseOf) -> Run:
    """Simulate the forest of a bucket of band keys."""
    count, runs = len(about.phase.tasks), about.phase.shared["runs"]
    exchange, edges = about.world.exchange(about.step, runs), int(clustered(about) * about.corpus.edges)

    def run(task: Task) -> Effect:
        bucket = task.arguments["bucket"]
        mine, reading = share(edges, bucket, count), read_runs(exchange, len(runs), 1 / count, bucket / count)
        path = f"exchange/forest/bucket-{bucket:05d}.parquet"
        files = (OutputFile(path, 1000 + FOREST_EDGE_BYTES * mine, CHECKSUM, mine),) if mine else ()
        details = msgspec.to_builtins(ForestFiles([file.path for file in files], mine))
        result = TaskResult(files, {}, details, records=exchange.rows // count, bytes_read=reading.bytes)
        return Effect(result, reading.reads, len(files), reading.bytes, sum(file.bytes for file in files))

    return run


def route_shingles(about: PhaseOf) -> Run:
    """Simulate the routing of the shingles of clustered documents. Giant components have an exchange of their own."""
    shared, corpus = about.phase.shared, about.corpus
    runs, buckets = shared["runs"], _buckets(about)
    exchange = about.world.exchange(about.step, runs)

    def run(task: Task) -> Effect:
        work = msgspec.convert(task.arguments, PartRange)
        mine = work.parts
        documents, text = sum(part.rows for part in mine), sum(part.text_bytes for part in mine)
        rows = corpus.clustered_in.get(task.key, int(documents * corpus.clustered))
        text = text * rows // max(1, documents)
        size = int(text * corpus.shingle_bytes) + rows * (DOCUMENT_BYTES + 8 * shared["bands"])
        there = giant_rows(about, rows)
        large = size * there // max(1, rows)
        giants = write_runs(about, GIANTS, task.key, shared["giant_buckets"], rows=there, size=large, budget=128 << 20)
        left = {"rows": rows - there, "size": size - large}
        written = write_runs(about, "shingles", task.key, work.buckets, **left, budget=128 << 20)
        known = _read_rows(exchange, len(runs), buckets, work)
        stored = sum(int(part.text_bytes * corpus.normalized) + part.signature_bytes for part in mine)
        reads = known.reads + sum(_shingle_reads(about, part) for part in mine if rows)
        details = msgspec.to_builtins(Routed(written.runs, giants.runs, _described(about, work.first, there)))
        outputs = written.outputs + giants.outputs
        result = TaskResult(outputs, details=details, records=rows, bytes_read=text)
        return Effect(result, reads, len(outputs), stored + known.bytes, written.bytes + giants.bytes,
                      work=task.input_bytes if rows else 0)  # fmt: skip

    return run


def _shingle_reads(about: PhaseOf, part: Part) -> int:
    """Return the number of requests that read a part's signatures and texts."""
    stored = int(part.text_bytes * about.corpus.normalized)
    return parquet_reads(part.signature_bytes) + parquet_reads(stored, part.text_bytes)


def _described(about: PhaseOf, first: int, rows: int) -> list[Described]:
    """Describe some rows of the giant component. first: a number that no other task has."""
    wanted = rows * SAMPLES // max(1, giant_rows(about, clustered(about)))
    return [Described(0, rows, 0, 0, [[first, number, 0] for number in range(wanted)])] if rows else []


def judge(about: PhaseOf) -> Run:
    """Simulate the verdicts on a bucket of components."""
    shared, corpus, count = about.phase.shared, about.corpus, len(about.phase.tasks)
    runs, documents = shared["runs"], clustered(about) - giant_rows(about, clustered(about))
    exchange = about.world.exchange(about.step, runs)
    gone = sum(near_copies_in(corpus, part) for part in all_parts(about.step))
    gone -= giant_rows(about, gone)
    buckets = _buckets(about).count
    size = max(2, int(corpus.cluster_size))

    def run(task: Task) -> Effect:
        bucket = task.arguments["bucket"]
        mine, removed = share(documents, bucket, count), share(gone, bucket, count)
        if not mine:
            return Effect(TaskResult(details=msgspec.to_builtins(Judged([], {}, []))), 2 * len(runs))
        written = write_runs(
            about, VERDICTS, task.key, buckets, rows=removed, size=removed * VERDICT_BYTES, budget=64 << 20
        )
        clusters = max(1, mine // size)
        largest = [(size, 1, f"{number:032x}") for number in range(min(LARGEST, clusters))]
        histogram = {str(1 << (size.bit_length() - 1)): clusters}
        details = msgspec.to_builtins(Judged(written.runs, histogram, largest))
        reading = read_runs(exchange, len(runs), 1 / count, bucket / count)
        counters = dict.fromkeys((f"dedup/{name}" for name in COUNTED), 0) | {"dedup/candidates": mine}
        result = TaskResult(written.outputs, counters, details, records=mine, bytes_read=reading.bytes)
        return Effect(result, reading.reads, len(written.outputs), reading.bytes, written.bytes)

    return run


def write_attributes(about: PhaseOf) -> Run:
    """Simulate the attribute files of a range of parts. The verdicts on the first copies are read, too."""
    shared, corpus = about.phase.shared, about.corpus
    exact, verdicts, buckets = shared["exact_runs"], shared["verdict_runs"], _buckets(about)
    copies_of, verdicts_of = (about.world.exchange(about.step, runs) for runs in (exact, verdicts))

    def run(task: Task) -> Effect:
        work = msgspec.convert(task.arguments, PartRange)
        mine = work.parts
        removed = [(copies_in(corpus, part), near_copies_in(corpus, part)) for part in mine]
        outputs = tuple(
            OutputFile(data_path(part.source, partition_name(part.index, part.count)),
                       2000 + corpus.removal_bytes * sum(gone), CHECKSUM, sum(gone))
            for part, gone in zip(mine, removed, strict=True)
        )  # fmt: skip
        copies, near = (sum(gone[kind] for gone in removed) for kind in (0, 1))
        documents = sum(part.rows for part in mine)
        counters = {"dedup/documents_in": documents, "dedup/exact_removed": copies, "dedup/fuzzy_removed": near,
                    "dedup/retained": documents - copies - near}  # fmt: skip
        some, none = ("0" * 32, "f" * 32), (None, None)
        bounds: list[tuple[str | None, str | None]] = [some if sum(gone) else none for gone in removed]
        first = _read_rows(copies_of, len(exact), buckets, work)
        first_copies = _read_anywhere(verdicts_of, len(verdicts), buckets, mine[0].first_row, copies)
        later = _read_rows(verdicts_of, len(verdicts), buckets, work)
        result = TaskResult(outputs, counters, msgspec.to_builtins(Removed(removed, bounds)), records=copies + near)
        reads = first.reads + later.reads + first_copies.reads
        return Effect(result, reads, len(outputs), first.bytes + later.bytes + first_copies.bytes)

    return run


def _buckets(about: PhaseOf) -> RowBuckets:
    return msgspec.convert(about.phase.shared, Shared).buckets


def _read_rows(exchange: Exchange, runs: int, buckets: RowBuckets, work: PartRange) -> Reading:
    """Return the cost of reading the rows of some parts from an exchange that is routed by row."""
    first, stop = work.rows
    if first == stop:
        return Reading(0, 0)
    ends = bucket_of(np.array([first, stop - 1], np.uint64), buckets).tolist()
    return read_runs(exchange, runs, (ends[1] + 1 - ends[0]) / buckets.count, ends[0] / buckets.count)


def _read_anywhere(exchange: Exchange, runs: int, buckets: RowBuckets, before: int, rows: int) -> Reading:
    """Return the cost of reading the buckets with some rows among the first `before` rows: all of these buckets at once
    or, if there are fewer rows than buckets, one at a time.
    """
    if not rows:
        return Reading(0, 0)
    count = 1 + (bucket_of(np.array([max(1, before) - 1], np.uint64), buckets).tolist()[0])
    if rows >= count:
        return read_runs(exchange, runs, count / buckets.count, 0.0)
    one = read_runs(exchange, runs, 1 / buckets.count)
    return Reading(rows * one.reads, rows * one.bytes)


def _runs(runs: list[str]) -> dict[str, Any]:
    return msgspec.to_builtins(Runs(runs))
