"""Estimates, before a step runs, how much text it reads, how much disk space it needs, and how many of its tasks run at
the same time. The size of the text is estimated from the sizes and the compression of the raw files. Once a step has
recorded the size of its text in its manifest, that size replaces the estimate. Everything else is estimated from the
size of the text. The shares below were measured on 121 MB of text in 13 files (including laws, novels, manuals, short
pages and code). For other datasets, the estimates may be off by up to 50 %, so `plan` says "about".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from datakit.download.source_file import SourceFile
from datakit.engine.disk_limits import DiskSpace
from datakit.engine.scheduler.run_loop import READY_PER_SLOT
from datakit.engine.task import Phase
from datakit.engine.worker.memory import MEMORY_SHARE, memory_limit
from datakit.storage import urls
from datakit.storage.manifest import Manifest

EXPANSION = {  # bytes of text per byte of a file
    ".gz": 2.8, ".zst": 4.0, ".br": 4.0, ".bz2": 4.0, ".xz": 4.0, ".parquet": 2.5,
}  # fmt: skip
OUTPUT_SHARE = {  # bytes that remain on disk per byte of text
    "normalize": 0.34,
    "annotate": 0.05,  # depends on the annotators
    "signatures": 0.05,
    "rules": 0.0005,
    "dedup": 0.001,
    "passages": 0.005,  # depends on the copies
    "select": 0.0005,
    "consolidate": 0.30,
    "train-tokenizer": 0.0,
    "contract": 0.0,
    "tokenize": 0.65,  # for tokens stored as uint16; about 50 % more for a vocabulary above 65,536
}
# temporary bytes on disk per byte of text during the step; tokenize has some only for large sources. Those of passages
# depend on the searches
EXCHANGE_SHARE = {"normalize": 1.05, "dedup": 0.15, "tokenize": 0.6}
WITHOUT_EXCHANGE = {"tokenize": 1 << 30}  # up to this many bytes of text, a step has no temporary files
# CPU-seconds of each stage's tasks per MB of text, measured at 1.2 GB on the machine of docs/measurements.md (a
# download mostly waits)
WORK_SECONDS = {
    "download": 0.001,
    "normalize": 0.0215,
    "annotate": 0.05,  # depends on the annotators; about that of all built-in ones together
    "signatures": 0.0072,
    "rules": 0.001,  # depends on the rules and on what they remove
    "dedup": 0.0063,
    "passages": 0.02,  # depends on the searches
    "select": 0.0002,  # it reads only ids: the rate of simulate/rates.py, for documents of 2 kB
    "consolidate": 0.0122,
    "train-tokenizer": 0.005,
    "contract": 0.0,
    "tokenize": 0.032,
}
FIXED_SECONDS = {"contract": 1.2}  # CPU-seconds that do not depend on the text


@dataclass(frozen=True)
class Resources:
    """The resources that a run may use, with the reason for each limit. disk_free: the number of free bytes on the
    root's disk; None for an object store.
    """

    workers: int
    workers_reason: str
    memory_bytes: int
    memory_reason: str
    disk_free: int | None


@dataclass(frozen=True)
class Concurrency:
    """The concurrency in a step's first phase. tasks: the number of tasks. task_memory: the number of bytes of memory
    that the largest task needs. at_a_time: the number of tasks that run at a time. reason: what limits `at_a_time`, or
    why the three numbers are None.
    """

    tasks: int | None
    task_memory: int | None
    at_a_time: int | None
    reason: str


def resources(root: str, workers: int | None) -> Resources:
    """Return the resources that a run may use on this machine."""
    cpus, memory = len(os.sched_getaffinity(0)), memory_limit()
    return Resources(
        workers=workers or cpus,
        workers_reason="as requested" if workers else f"one for each of the {cpus} CPUs this process may use",
        memory_bytes=int(memory * MEMORY_SHARE),
        memory_reason=f"{MEMORY_SHARE:.0%} of the {memory / 1e9:,.1f} GB of this machine or its cgroup",
        disk_free=disk_free(root),
    )


def disk_free(root: str) -> int | None:
    """Return the number of free bytes on the disk that holds, or will hold, a local folder; None for an object
    store.
    """
    if not urls.is_local(root):
        return None
    return DiskSpace.of(urls.local_path(root)).free


def raw_text_bytes(files: Iterable[SourceFile]) -> int:
    """Return the estimated number of bytes of text in raw files."""
    return int(sum(file.size * EXPANSION.get(os.path.splitext(file.path)[1], 1.0) for file in files))


def manifest_text_bytes(manifest: Manifest) -> int | None:
    """Return the number of bytes of text in a finished step's output: an estimate for a download, otherwise the
    recorded number (None if none is recorded).
    """
    if manifest.stage == "download":
        return raw_text_bytes(SourceFile(part.path, part.bytes, part.xxh3) for part in manifest.partitions)
    return manifest.totals.text_bytes


def work_seconds(stage: str, text_bytes: int) -> float:
    """Return the estimated number of CPU-seconds that the tasks of a step take."""
    return FIXED_SECONDS.get(stage, 0.0) + WORK_SECONDS.get(stage, 0.01) * text_bytes / 1e6


def disk_bytes(stage: str, text_bytes: int, exchange: float | None = None) -> tuple[int, int]:
    """Return the estimated disk use of a step that processes this much text: the number of bytes that remain after the
    step, and the number of bytes at the peak. exchange: temporary bytes per byte of text, if the step's settings tell.
    """
    stays = int(text_bytes * OUTPUT_SHARE.get(stage, 0.0))
    share = EXCHANGE_SHARE.get(stage, 0.0) if exchange is None else exchange
    if text_bytes <= WITHOUT_EXCHANGE.get(stage, 0):
        share = 0.0
    return stays, stays + int(text_bytes * share)


def concurrency_of(phase: Phase, available: Resources) -> Concurrency:
    """Return how many tasks of a phase would run at a time, and what limits this number."""
    largest = max((task.input_bytes for task in phase.tasks), default=0)
    memory = int(phase.memory_bytes + phase.memory_per_input_byte * largest)
    limits = {
        "the number of tasks": len(phase.tasks),
        "the workers": max(1, available.workers // phase.cpus),
        "the memory": max(1, available.memory_bytes // max(1, memory)),
    }
    limit = min(limits, key=lambda name: limits[name])
    return Concurrency(len(phase.tasks), memory, limits[limit], f"limited by {limit}")


class DiskUse(NamedTuple):
    """The disk use of a step, in bytes; None if it is unknown. stays: what remains when the step is done. most: what
    the step takes while it runs. tasks: the number of its tasks.
    """

    stage: str
    stays: int | None
    most: int | None
    tasks: int


def peak(steps: Sequence[DiskUse], slots: int) -> int | None:
    """Return the peak disk use, in bytes, of a run with this many slots, or None if a size is unknown. steps: in the
    order of the graph, in which the steps of a stage follow one another.

    Stages come one after another. The steps of a stage, each for one source, run together as long as they have few
    tasks (`RunLoop.has_room`), so all of these hold their temporary files at the same time.
    """
    kept = most = 0
    for _, group in groupby(steps, key=lambda step: step.stage):
        temporary, tasks, together = list[tuple[int, int]](), 0, 0
        for step in group:
            if step.stays is None or step.most is None:
                return None
            kept += step.stays
            temporary.append((step.most - step.stays, step.tasks))
        for size, count in sorted(temporary, reverse=True):
            if tasks < READY_PER_SLOT * slots:
                together, tasks = together + size, tasks + count
        most = max(most, kept + together)
    return most
