"""Simulates the tasks of the stage passages. Passages are assumed to have a mean size; their copies are guesses."""

from __future__ import annotations

import msgspec

from datakit.engine.task import OutputFile, Task, TaskResult
from datakit.passages.config import DATASET, SUBSTRING
from datakit.passages.exchange_sizes import STRETCHES_EACH
from datakit.passages.phase_data import (
    COPIES,
    PASSAGES,
    REPEATS,
    ROW_BYTES,
    STRETCHES,
    Copied,
    Part,
    PartRange,
    Read,
    Routed,
    Search,
    SearchCounts,
    Shared,
    Tables,
    Written,
)
from datakit.passages.stage import parts_of
from datakit.passages.substrings.rows import STRETCH_BYTES
from datakit.pipeline.simulate.corpus import share
from datakit.pipeline.simulate.effects import (
    CHECKSUM,
    Effect,
    PhaseOf,
    Run,
    id_reads,
    parquet_reads,
    read_runs,
    write_runs,
)
from datakit.storage.manifest import Partition

PASSAGE_BYTES = 200  # bytes of text per passage that is long enough: a guess
COPIED = 0.02  # the share of passages that are marked as copies: a guess
SPAN_BYTES, STORED_BYTES = 17, 12  # bytes of a span in the exchange and in a table
BUDGET = 128 << 20


def found_in(part: Part, search: Search) -> int:
    """Return the number of passages of a part."""
    each = 1 if search.config.unit == SUBSTRING else max(PASSAGE_BYTES, search.config.least)
    return part.text_bytes // each


def is_routed(search: Search) -> bool:
    """Return True for a search for substrings in the dataset."""
    return search.config.unit == SUBSTRING and search.config.within == DATASET


def stretches_in(part: Part, search: Search) -> int:
    """Return the number of stretches of substrings that a part writes to the exchange."""
    return part.text_bytes * STRETCHES_EACH // search.config.least if is_routed(search) else 0


def marked_in(part: Part, search: Search) -> int:
    """Return the number of spans of a part."""
    return int(part.text_bytes // max(PASSAGE_BYTES, search.config.least) * COPIED)


def route(about: PhaseOf) -> Run:
    """Simulate the search for the passages of a range of parts. No document is assumed to leave."""
    common = msgspec.convert(about.phase.shared, Shared)
    dataset = [one for one in common.searches if one.config.within == DATASET and not is_routed(one)]
    document = [one for one in common.searches if one.config.within != DATASET]

    def run(task: Task) -> Effect:
        work = msgspec.convert(task.arguments, PartRange)
        read = [Read(part.rows, 0, [found_in(part, one) for one in common.searches]) for part in work.parts]
        rows = sum(found_in(part, one) for part in work.parts for one in dataset)
        spans = sum(marked_in(part, one) for part in work.parts for one in document)
        passages = write_runs(
            about, PASSAGES, task.key, common.buckets, rows=rows, size=rows * ROW_BYTES, budget=BUDGET
        )
        repeats = write_runs(
            about, REPEATS, task.key, common.by_row.count, rows=spans, size=spans * SPAN_BYTES, budget=BUDGET
        )
        number = sum(stretches_in(part, one) for part in work.parts for one in common.searches)
        stretches = write_runs(
            about, STRETCHES, task.key, common.stretches, rows=number, size=number * STRETCH_BYTES, budget=BUDGET
        )
        repeated = [
            sum(marked_in(part, one) for part in work.parts) if one in document else 0 for one in common.searches
        ]
        documents = sum(part.rows for part in work.parts)
        counters = {"passages/documents": documents, "passages/left_out": 0}
        counters |= {f"passages/found/{one.name}": sum(each.found[one.number] for each in read)
                     for one in common.searches}  # fmt: skip
        details = msgspec.to_builtins(Routed(passages.runs, repeats.runs, stretches.runs, read, repeated))
        outputs = (*passages.outputs, *repeats.outputs, *stretches.outputs)
        size = int(task.input_bytes * about.corpus.normalized)
        reads = sum(
            parquet_reads(int(part.text_bytes * about.corpus.normalized), part.text_bytes) for part in work.parts
        )
        result = TaskResult(outputs, counters, details, records=documents, bytes_read=task.input_bytes)
        return Effect(result, reads, len(outputs), size, passages.bytes + repeats.bytes + stretches.bytes)

    return run


def find_copies(about: PhaseOf) -> Run:
    """Simulate the search for copies in a bucket. The passages are spread evenly over the buckets."""
    common = msgspec.convert(about.phase.shared, Shared)
    exchange, count = about.world.exchange(about.step, common.runs), len(about.phase.tasks)
    searches = [one for one in common.searches if one.config.within == DATASET and not is_routed(one)]
    parts = parts_of(about.step)
    found = [sum(found_in(part, one) for part in parts) if one in searches else 0 for one in common.searches]
    marked = [sum(marked_in(part, one) for part in parts) if one in searches else 0 for one in common.searches]

    def run(task: Task) -> Effect:
        number = int(task.arguments["bucket"])
        read, gone = ([share(total, number, count) for total in totals] for totals in (found, marked))
        spans = sum(gone)
        written = write_runs(
            about, COPIES, task.key, common.by_row.count, rows=spans, size=spans * SPAN_BYTES, budget=BUDGET
        )
        reading = read_runs(exchange, len(common.runs), 1 / count, number / count)
        counters = {f"passages/repeated/{one.name}": gone[one.number] for one in searches}
        details = msgspec.to_builtins(Copied(written.runs, read, gone, gone))
        result = TaskResult(written.outputs, counters, details, records=sum(read), bytes_read=sum(read) * ROW_BYTES)
        return Effect(result, reading.reads, len(written.outputs), reading.bytes, written.bytes)

    return run


def write_tables(about: PhaseOf) -> Run:
    """Simulate the tables of a range of parts."""
    common = msgspec.convert(about.phase.shared, Shared)
    exchange = about.world.exchange(about.step, common.runs)

    def written(part: Part) -> Written:
        counts = [
            SearchCounts(0, marked, marked * PASSAGE_BYTES, min(marked, part.rows))
            for marked in (marked_in(part, one) for one in common.searches)
        ]
        rows = max((one.documents for one in counts), default=0)
        size = 1000 + 32 * rows + STORED_BYTES * sum(one.marked for one in counts)
        ends = ("0" * 32, "f" * 32) if rows else (None, None)
        partition = Partition(part.output, part.source, rows, size, CHECKSUM, first_id=ends[0], last_id=ends[1])
        return Written(partition, counts)

    def run(task: Task) -> Effect:
        work = msgspec.convert(task.arguments, PartRange)
        tables = [written(part) for part in work.parts]
        counters = {
            f"passages/{kind}/{one.name}": sum(getattr(table.counts[one.number], kind) for table in tables)
            for one in common.searches
            for kind in ("marked", "marked_bytes")
        }
        outputs = tuple(OutputFile(one.path, one.bytes, CHECKSUM, one.rows) for one in (t.partition for t in tables))
        rows = sum(part.rows for part in work.parts)
        reading = read_runs(exchange, len(common.runs), rows / max(1, common.by_row.rows))
        ids = sum(id_reads(about.corpus, part.rows, part.text_bytes) for part in work.parts)
        read = [sum(table.counts[one.number].marked for table in tables) for one in common.searches]
        details = msgspec.to_builtins(Tables(tables, read))
        result = TaskResult(outputs, counters, details, records=rows)
        return Effect(result, reading.reads + ids, len(outputs), reading.bytes + 32 * rows)

    return run
