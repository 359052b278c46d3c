"""Simulates the tasks of the stages download, normalize and annotate, and those that merge the runs of an exchange."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pyarrow as pa

from datakit.annotate.model_server.answer_store import BATCH
from datakit.engine.exchange.merge import MergeWork
from datakit.engine.exchange.merge_tasks import BUDGET_BYTES
from datakit.engine.exchange.run_file import INDEX_SUFFIX
from datakit.engine.exchange.run_names import buckets_each
from datakit.engine.task import OutputFile, Task, TaskResult
from datakit.normalize import route
from datakit.normalize.config import Config
from datakit.normalize.readers.slices import EXPANSION
from datakit.normalize.record_counts import ADDED, IN, LIMITED, OUT, REMOVED, REPAIRED
from datakit.normalize.where.predicate import Predicate
from datakit.pipeline.simulate.corpus import SourceText, share
from datakit.pipeline.simulate.effects import (
    CHECKSUM,
    INDEX_BYTES,
    Effect,
    Exchange,
    PhaseOf,
    Run,
    batches_bytes,
    parquet_reads,
    read_runs,
    write_runs,
)
from datakit.storage import urls
from datakit.storage.fingerprint import config_of
from datakit.storage.ids import partition_name
from datakit.storage.manifest import data_path, table_path
from datakit.storage.urls import READ_AHEAD_BYTES

SCORES = "simulated_scores"  # the key, in `Step.operations`, of the numeric columns that dedup reads
ATTRIBUTE_BYTES = 100  # of a document in one table (a guess)
FILE_ROW_BYTES = 60  # bytes per row of origins/files.parquet


def fetch_file(about: PhaseOf) -> Run:
    """Simulate the download of a file."""

    def run(task: Task) -> Effect:
        size, path = task.input_bytes, f"raw/{task.arguments.get('copy', task.arguments['path'])}"
        result = TaskResult((OutputFile(path, size, CHECKSUM),), {"download/bytes": size}, bytes_read=size)
        return Effect(result, reads=2 + math.ceil(size / (8 << 20)), writes=1, read=size)

    return run


def index_archive(about: PhaseOf) -> Run:
    """Simulate the search for the places at which a web archive is cut: it is one member, which is not cut."""

    def run(task: Task) -> Effect:
        size = task.stored_bytes or 0
        details = {"cuts": [], "content_bytes": size * EXPANSION}
        return Effect(TaskResult(details=details, bytes_read=size), reads=_slice_reads(task), read=size)

    return run


def fetch_repository(about: PhaseOf) -> Run:
    """Simulate the download of a Git repository."""

    def run(task: Task) -> Effect:
        size = task.input_bytes
        outputs = (OutputFile(task.arguments["path"], size, CHECKSUM), OutputFile("left_out.parquet", 0, CHECKSUM))
        result = TaskResult(outputs, {"download/bytes": size}, bytes_read=size)
        return Effect(result, reads=2, writes=2, read=size)

    return run


def find_types(about: PhaseOf) -> Run:
    """Simulate the search for the column types of a slice."""

    def run(task: Task) -> Effect:
        details = {"schemas": [[task.arguments["pieces"][0]["path"], _schema(about)]], "large": []}
        size = task.stored_bytes or 0
        return Effect(TaskResult(details=details, bytes_read=size), reads=_slice_reads(task), read=size)

    return run


def count_documents(about: PhaseOf) -> Run:
    """Simulate the count of the documents of a slice, as if the limit of the source were never reached."""

    def run(task: Task) -> Effect:
        size = task.stored_bytes or 0
        return Effect(TaskResult(details={"documents": 0}, bytes_read=size), reads=_slice_reads(task), read=size)

    return run


def route_slice(about: PhaseOf) -> Run:
    """Simulate the routing of a slice. Its share of the source's records equals its share of the stored bytes."""
    source, buckets = _source(about), about.phase.shared["buckets"]
    stored = np.array([task.stored_bytes or 0 for task in about.phase.tasks], np.int64)
    ends, numbers = np.cumsum(np.maximum(stored, 1)), {task.key: i for i, task in enumerate(about.phase.tasks)}
    schema = _schema(about)

    def part(amount: int, number: int) -> int:
        before = int(ends[number - 1]) if number else 0
        return amount * int(ends[number]) // int(ends[-1]) - amount * before // int(ends[-1])

    def run(task: Task) -> Effect:
        number = numbers[task.key]
        records, size = part(source.records, number), part(source.value_bytes, number)
        rows = size + (route.ROW_BYTES + 16) * records
        written = write_runs(about, route.PHASE, task.key, buckets, rows=records, size=rows, budget=route.BUDGET_BYTES)
        files = list(dict.fromkeys(piece["path"] for piece in task.arguments["pieces"]))
        each = [[share(records, i, len(files)), share(records, i, len(files)), share(size, i, len(files))]
                for i in range(len(files))]  # fmt: skip
        details = {"runs": written.runs, "schemas": [[files[0], schema]], "large": [], "documents": False,
                   "value_bytes": size, "heavy": [], "files": each, "giants": []}  # fmt: skip
        counters = dict.fromkeys((*(name for name in REMOVED if name != LIMITED), *REPAIRED, ADDED), 0) | {IN: records}
        read = task.stored_bytes or 0
        result = TaskResult(written.outputs, counters, details, records=records, bytes_read=read)
        return Effect(result, _slice_reads(task), len(written.outputs), read, written.bytes)

    return run


def merge_runs(about: PhaseOf) -> Run:
    """Simulate the merge of a range of buckets from a group of runs."""
    name, tasks = about.phase.name, len(about.phase.tasks)
    before = about.world.exchanges.get((about.step.directory, name.removesuffix("-merge")), Exchange())
    work = msgspec.convert(about.phase.tasks[0].arguments, MergeWork)
    count = (work.stop - work.first) * buckets_each(work.buckets)
    pieces = work.buckets // count
    rows, parts = before.rows // tasks, max(1, math.ceil(before.values / tasks / (BUDGET_BYTES // 2)))
    size, index = before.values // tasks + parts * batches_bytes(rows / parts, count), INDEX_BYTES + 8 * (count + 1)
    about.world.exchanges[about.step.directory, name] = Exchange(
        size * tasks, before.rows, tasks // pieces, count, before.values, pieces
    )

    def run(task: Task) -> Effect:
        group, path = task.arguments["runs"], f"exchange/{name}/{task.arguments['key']}.arrow"
        outputs = (OutputFile(path, size, CHECKSUM, rows), OutputFile(path + INDEX_SUFFIX, index, CHECKSUM))
        reading = read_runs(before, before.runs, 1 / pieces, task.arguments["first"] / before.buckets)
        reads = round(reading.reads * len(group) / before.runs)
        result = TaskResult(outputs, details={"runs": [path]}, bytes_read=task.input_bytes)
        return Effect(result, reads, 2, task.input_bytes, size + index)

    return run


def sort_partition(about: PhaseOf) -> Run:
    """Simulate the sort of a partition."""
    shared, corpus, source = about.phase.shared, about.corpus, _source(about)
    count, exchange = 1 << shared["bits"], about.world.exchange(about.step, shared["runs"])

    def run(task: Task) -> Effect:
        number = task.arguments["partition"]
        (records, rows, text), name = source.partition(number, count), partition_name(number, count)
        size = int(corpus.normalized * (text + (source.value_bytes * rows // max(1, source.records) - text)))
        files = [OutputFile(data_path(shared["source"], name), max(size, 1000), CHECKSUM, rows)]
        files.append(OutputFile(f"origins/{name}", 1000 + corpus.origin_bytes * records, CHECKSUM, records))
        if records > rows:
            again = records - rows
            files.append(OutputFile(f"duplicates/{name}", 1000 + corpus.origin_bytes * again, CHECKSUM, again))
        ends = [_id(number, count), _id(number, count, last=True)] if rows else [None, None]
        details = {"text_bytes": text, "first_id": ends[0], "last_id": ends[1]}
        counters = {OUT: rows, "normalize/duplicates": records - rows}
        reading = read_runs(exchange, len(shared["runs"]), 1 / count, number / count)
        return Effect(
            TaskResult(tuple(files), counters, details, records=records), reading.reads, len(files), reading.bytes
        )

    return run


def write_files(about: PhaseOf) -> Run:
    """Simulate the list of a source's files."""

    def run(task: Task) -> Effect:
        count = len(task.arguments["paths"])
        file = OutputFile("origins/files.parquet", 1000 + FILE_ROW_BYTES * count, CHECKSUM, count)
        return Effect(TaskResult((file,)), writes=1)

    return run


def ask_partition(about: PhaseOf) -> Run:
    """Simulate the answers of model servers about a partition: every document gets one."""
    (source,) = about.step.inputs_of("normalize")
    partitions, servers = source.manifest.partitions, sorted(about.phase.shared["servers"])

    def run(task: Task) -> Effect:
        part = partitions[int(task.key)]
        name, size = urls.name(part.path), 1000 + ATTRIBUTE_BYTES * part.rows
        files = [OutputFile(f"exchange/answers/{one}/{name}", size, CHECKSUM, part.rows) for one in servers]
        details = {"digests": dict.fromkeys(servers, CHECKSUM)}
        result = TaskResult(tuple(files), {"annotate/quarantined": 0}, details, records=part.rows)
        stored = len(servers) * max(1, part.rows // BATCH)
        return Effect(result, parquet_reads(part.bytes), len(files) + 2 * stored, part.bytes)

    return run


def annotate_partition(about: PhaseOf) -> Run:
    """Simulate the attributes of a partition: one table for each annotator."""
    (source,) = about.step.inputs_of("normalize")
    partitions, annotators = source.manifest.partitions, sorted(about.phase.shared["annotators"])

    def run(task: Task) -> Effect:
        part = partitions[int(task.key)]
        name, size = urls.name(part.path), 1000 + ATTRIBUTE_BYTES * part.rows
        files = [OutputFile(table_path(part.source, one, name), size, CHECKSUM, part.rows) for one in annotators]
        counters = {"annotate/documents": part.rows, "annotate/quarantined": 0}
        counters |= {f"annotate/{one}": part.rows for one in annotators}
        result = TaskResult(tuple(files), counters, records=part.rows, bytes_read=task.input_bytes)
        return Effect(result, parquet_reads(part.bytes), len(files), part.bytes)

    return run


def _source(about: PhaseOf) -> SourceText:
    return about.corpus.sources[about.step.dataset]


def _slice_reads(task: Task) -> int:
    """Return the number of requests for a slice: each file is looked up, and then read in pieces."""
    pieces, stored = task.arguments["pieces"], task.stored_bytes or 0
    weight = max(1, sum(piece["weight"] for piece in pieces))

    def reads(path: str, size: int) -> int:
        return parquet_reads(size) if path.endswith(".parquet") else 1 + max(1, math.ceil(size / READ_AHEAD_BYTES))

    return sum(reads(piece["path"], stored * piece["weight"] // weight) for piece in pieces)


def _schema(about: PhaseOf) -> str:
    """Return the columns of a slice other than the text, as a routing task reports them."""
    config = config_of(about.phase.shared["config"], Config)
    names = [config.id, *(Predicate(config.where).columns if config.where else [])]
    fields = [(name, pa.string()) for name in dict.fromkeys(names) if name and name != config.text_name]
    fields += [(name, pa.float64()) for name in about.step.operations.get(SCORES, ())]
    return pa.schema(fields).serialize().to_pybytes().hex()


def _id(number: int, count: int, *, last: bool = False) -> str:
    width = 128 - (count.bit_length() - 1)
    return f"{((number + 1) << width) - 1 if last else number << width:032x}"
