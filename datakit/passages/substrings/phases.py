"""Plans the phases that compare the stretches of substrings which the first phase of the stage has routed."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from datakit.engine.exchange.exchange import both, merged, run_sizes
from datakit.engine.exchange.row_buckets import power_of_two
from datakit.engine.task import BATCH_HANG_SECONDS, Phase, Preload, Step, Task, TaskResult
from datakit.passages.phase_data import (
    STRETCH_COPIES,
    STRETCHES,
    SUBSTRING_COPIES,
    TEXTS,
    UNDECIDED,
    Compared,
    Shared,
    Undecided,
    details_of,
)

TASK_BYTES = 64 << 20
TEXT_TASK_BYTES = 16 << 20  # of each byte of a text, a substring of 30 bytes is made
MEMORY = 640 << 20
PRELOADS = tuple(
    Preload(f"datakit.passages.substrings.{module}", f"datakit.passages.substrings.{module}:warm", kernels=True)
    for module in ("find_stretches", "within_documents")
)
PHASES = {STRETCHES: "stretches", TEXTS: "substrings"}  # the names of the phases that read these exchanges
TASKS = "datakit.passages.substrings.tasks"
Phases = Generator[Phase, Sequence[TaskResult], "Found"]


class Found(NamedTuple):
    """The result of the phases: the runs of spans, and for each search, the number of substrings that were compared and
    that of spans; those of undecided substrings that were found, and of those that were read.
    """

    runs: list[str]
    read: list[int]
    spans: list[int]
    undecided: list[int]
    undecided_read: list[int]


def compared(step: Step, stretches: dict[str, int], shared: Shared, reading: Phase) -> Phases:
    """Yield the phases. stretches: the runs of stretches, and their sizes. reading: a phase with a task for each range
    of parts, of which the phase that reads texts has the same tasks.
    """
    zeros = [0] * len(shared.searches)
    if not stretches:
        return Found([], zeros, zeros, zeros, zeros)
    runs = yield from merged(step, STRETCHES, stretches, shared.stretches, readers=shared.stretches)
    first = yield _phase("compare_stretches", shared.stretches, sum(stretches.values()),
                         replace(shared, runs=runs), STRETCHES)  # fmt: skip
    found = details_of(first, Undecided)
    spans = sizes_of(first, [one.compared.runs for one in found])
    span_runs = yield from merged(step, STRETCH_COPIES, spans, shared.by_row.count, readers=shared.by_row.count)
    undecided = sizes_of(first, [one.runs for one in found])
    second = yield from _undecided(step, undecided, sum(one.bytes for one in found), shared, reading)
    again = details_of(second, Compared)
    more = yield from merged(step, SUBSTRING_COPIES, run_sizes(second), shared.by_row.count,
                             readers=shared.by_row.count)  # fmt: skip
    ours = [one.compared for one in found]
    return Found(
        [*span_runs, *more],
        _sums([one.read for one in ours], zeros),
        _sums([one.spans for one in (*ours, *again)], zeros),
        _sums([one.substrings for one in found], zeros),
        _sums([one.read for one in again], zeros),
    )


def _undecided(
    step: Step, undecided: dict[str, int], size: int, shared: Shared, reading: Phase
) -> Generator[Phase, Sequence[TaskResult], Sequence[TaskResult]]:
    """Yield the phases that compare undecided substrings, and return the results of the last one. size: that of their
    texts.
    """
    if not undecided:
        return []
    shared = replace(shared, texts=power_of_two(size / TEXT_TASK_BYTES))
    runs = yield from merged(step, UNDECIDED, undecided, shared.by_row.count, readers=shared.by_row.count)
    tasks = tuple(replace(task, function=f"{TASKS}:read_texts") for task in reading.tasks)
    routed = yield replace(
        reading, name="texts", tasks=tasks, shared=msgspec.to_builtins(replace(shared, runs=runs)),
        drops=both(UNDECIDED),
    )  # fmt: skip
    texts = run_sizes(routed)
    runs = yield from merged(step, TEXTS, texts, shared.texts, readers=shared.texts)
    return (yield _phase("compare_substrings", shared.texts, sum(texts.values()),
                         replace(shared, runs=runs), TEXTS))  # fmt: skip


def _phase(function: str, buckets: int, size: int, shared: Shared, read: str) -> Phase:
    """Return a phase with a task for each bucket. size: the number of bytes that all read. read: the exchange."""
    tasks = tuple(
        Task(f"{bucket:05d}", f"{TASKS}:{function}", {"bucket": bucket}, size // buckets) for bucket in range(buckets)
    )
    return Phase(
        PHASES[read], tasks, msgspec.to_builtins(shared), PRELOADS, memory_bytes=MEMORY, memory_per_input_byte=0.0,
        hang_seconds=BATCH_HANG_SECONDS, drops=both(read),
    )  # fmt: skip


def sizes_of(results: Sequence[TaskResult], runs: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the sizes of some runs of each task: path -> bytes."""
    found = dict[str, int]()
    for result, mine in zip(results, runs, strict=True):
        sizes = {output.path: output.bytes for output in result.outputs}
        found |= {run: sizes[run] for run in mine}
    return found


def _sums(counts: Sequence[Sequence[int]], zeros: Sequence[int]) -> list[int]:
    """Add up counts, search by search."""
    return [sum(column) for column in zip(zeros, *counts, strict=True)]
