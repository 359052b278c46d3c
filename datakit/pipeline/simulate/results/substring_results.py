"""Simulates the tasks of the stage passages that compare substrings. How many stretches are copies, and how many
substrings remain undecided, are measurements on real text.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from datakit.engine.task import Task, TaskResult
from datakit.passages.phase_data import (
    STRETCH_COPIES,
    SUBSTRING_COPIES,
    TEXTS,
    UNDECIDED,
    Compared,
    Part,
    PartRange,
    Search,
    Shared,
    Undecided,
)
from datakit.passages.stage import parts_of
from datakit.passages.substrings.rows import STRETCH_BYTES, UNDECIDED_BYTES
from datakit.pipeline.simulate.corpus import share
from datakit.pipeline.simulate.effects import Effect, PhaseOf, Run, parquet_reads, read_runs, write_runs
from datakit.pipeline.simulate.results.passage_results import BUDGET, SPAN_BYTES, found_in, is_routed, marked_in

OPEN = 0.08  # the share of substrings that remain undecided, with min_bytes = 100
EACH = 25  # undecided substrings per range
TEXT_BYTES = 13  # the size of a text in the exchange, without its bytes


def _undecided(part: Part, search: Search) -> int:
    return int(found_in(part, search) * OPEN) // EACH * EACH if is_routed(search) else 0


def _size(ranges: int, search: Search) -> int:
    """Return the size of the texts of some ranges."""
    return ranges * (search.config.least + EACH - 1 + TEXT_BYTES)


def _totals(about: PhaseOf, searches: list[Search], count: Callable[[Part, Search], int]) -> list[int]:
    parts = parts_of(about.step)
    return [sum(count(part, one) for part in parts) if is_routed(one) else 0 for one in searches]


def compare_stretches(about: PhaseOf) -> Run:
    """Simulate the comparison of stretches in a bucket. They are spread evenly over the buckets."""
    common = msgspec.convert(about.phase.shared, Shared)
    exchange, count = about.world.exchange(about.step, common.runs), len(about.phase.tasks)
    found, spans, undecided = (_totals(about, common.searches, one) for one in (found_in, marked_in, _undecided))

    def run(task: Task) -> Effect:
        number = int(task.arguments["bucket"])
        read, marked, waiting = ([share(one, number, count) for one in many] for many in (found, spans, undecided))
        ranges = [one // EACH for one in waiting]
        copies = write_runs(
            about, STRETCH_COPIES, task.key, common.by_row.count, rows=sum(marked), size=sum(marked) * SPAN_BYTES,
            budget=BUDGET,
        )  # fmt: skip
        rest = write_runs(
            about, UNDECIDED, task.key, common.by_row.count, rows=sum(ranges), size=sum(ranges) * UNDECIDED_BYTES,
            budget=BUDGET,
        )  # fmt: skip
        size = sum(_size(each, one) for each, one in zip(ranges, common.searches, strict=True))
        reading = read_runs(exchange, len(common.runs), 1 / count, number / count)
        details = Undecided(Compared(copies.runs, read, marked), rest.runs, waiting, size)
        outputs, records = (*copies.outputs, *rest.outputs), reading.bytes // STRETCH_BYTES
        result = TaskResult(outputs, {}, msgspec.to_builtins(details), records=records, bytes_read=reading.bytes)
        return Effect(result, reading.reads, len(outputs), reading.bytes, copies.bytes + rest.bytes)

    return run


def read_texts(about: PhaseOf) -> Run:
    """Simulate the reading of the texts of undecided substrings."""
    common = msgspec.convert(about.phase.shared, Shared)
    exchange = about.world.exchange(about.step, common.runs)

    def run(task: Task) -> Effect:
        work = msgspec.convert(task.arguments, PartRange)
        ranges = [sum(_undecided(part, one) for part in work.parts) // EACH for one in common.searches]
        size = sum(_size(each, one) for each, one in zip(ranges, common.searches, strict=True))
        texts = write_runs(about, TEXTS, task.key, common.texts, rows=sum(ranges), size=size, budget=BUDGET)
        rows = sum(part.rows for part in work.parts)
        reading = read_runs(exchange, len(common.runs), rows / max(1, common.by_row.rows))
        sizes = [int(part.text_bytes * about.corpus.normalized) for part in work.parts]
        reads = sum(parquet_reads(each, part.text_bytes) for each, part in zip(sizes, work.parts, strict=True))
        details = {"runs": texts.runs}
        result = TaskResult(texts.outputs, {}, details, records=sum(ranges), bytes_read=task.input_bytes)
        return Effect(result, reading.reads + reads, len(texts.outputs), reading.bytes + sum(sizes), texts.bytes)

    return run


def compare_substrings(about: PhaseOf) -> Run:
    """Simulate the comparison of undecided substrings in a bucket; none of them is assumed to be a copy."""
    common = msgspec.convert(about.phase.shared, Shared)
    exchange, count = about.world.exchange(about.step, common.runs), len(about.phase.tasks)
    undecided = _totals(about, common.searches, _undecided)

    def run(task: Task) -> Effect:
        number = int(task.arguments["bucket"])
        read = [share(one, number, count) for one in undecided]
        copies = write_runs(about, SUBSTRING_COPIES, task.key, common.by_row.count, rows=0, size=0, budget=BUDGET)
        reading = read_runs(exchange, len(common.runs), 1 / count, number / count)
        details = msgspec.to_builtins(Compared(copies.runs, read, [0] * len(read)))
        result = TaskResult(copies.outputs, {}, details, records=sum(read) // EACH, bytes_read=reading.bytes)
        return Effect(result, reading.reads, len(copies.outputs), reading.bytes, copies.bytes)

    return run
