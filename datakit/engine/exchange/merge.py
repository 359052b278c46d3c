"""Merges exchange runs into fewer, larger runs if reducers would otherwise need over a million reads (runs x reducers).

If each of R reducers reads M runs, they make 2 x M x R requests in total: 8 million for M = R = 2,000. If groups of
sqrt(M) consecutive runs are merged first, the reducers read only R x sqrt(M) ranges. Record batches are copied as bytes
without decoding. The order of rows in a bucket (by run, then by row) and the schemas (`run_file.py`) are preserved.
Cost: one copy of the data.
Memory: at most two copies of a window of 64 MiB, plus the indexes of the runs.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from datakit.engine.exchange.run_file import END_OF_STREAM, INDEX_SUFFIX, RunIndex, pieces, read_index, windows
from datakit.engine.task import OutputFile, Phase, Step, Task, TaskContext, TaskResult
from datakit.errors import CorruptError
from datakit.storage import atomic, urls

MOST_READS = 10**6  # chosen because an object store serves this many reads within minutes
WINDOW_BYTES = 64 << 20
MEMORY_BYTES = 512 << 20  # two copies of the window, the indexes, and a margin


def merged(step: Step, phase: str, runs: list[str], readers: int) -> Generator[Phase, Sequence[TaskResult], list[str]]:
    """Merge runs if runs x reducers exceeds a million; `readers` is the number of reducers.

    Use it as `runs = yield from merged(step, "route", runs, readers)`.
    """
    if len(runs) * readers <= MOST_READS:
        return runs
    size = math.isqrt(len(runs) - 1) + 1
    name = f"{phase}-merge"
    groups = [runs[start : start + size] for start in range(0, len(runs), size)]
    keyed = {f"{number:05d}": group for number, group in enumerate(groups)}
    function = "datakit.engine.exchange.merge:merge_runs"
    tasks = [Task(key, function, {"phase": name, "key": key, "runs": group}) for key, group in keyed.items()]
    results = yield Phase(name, tuple(tasks), memory_bytes=MEMORY_BYTES, memory_per_input_byte=0.0)
    return [run for result in results for run in result.details["runs"]]


def merge_runs(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Merge one group of runs into the run `exchange/<phase>/<key>.arrow`. This is a task function."""
    sources = [urls.join(context.step_directory, run) for run in arguments["runs"]]
    indexes = [read_index(url) for url in sources]
    if len({index.buckets for index in indexes}) != 1:
        raise CorruptError(
            f"the runs of {arguments['phase']} differ in their number of buckets; remove the step's folder exchange/ "
            f"and run again"
        )
    path = f"exchange/{arguments['phase']}/{arguments['key']}.arrow"
    url = urls.join(context.step_directory, path)
    with atomic.staging(url) as local:
        index = _merge(local, sources, indexes)
        data = atomic.commit_file(local, url)
    sidecar = atomic.commit_bytes(index.encode(), url + INDEX_SUFFIX)
    outputs = (
        OutputFile(path, data.bytes, data.xxh3, index.rows),
        OutputFile(path + INDEX_SUFFIX, sidecar.bytes, sidecar.xxh3),
    )
    return TaskResult(outputs, details={"runs": [path]}, records=index.rows, bytes_read=data.bytes)


def _merge(local: Path, sources: list[str], indexes: list[RunIndex]) -> RunIndex:
    schemas, places = _segments(indexes)
    buckets = indexes[0].buckets
    sizes = np.zeros((buckets, len(schemas)), np.int64)
    for index, mapping in zip(indexes, places, strict=True):
        lengths = np.diff(index.offsets).reshape(buckets, index.segments)
        for segment, place in enumerate(mapping):
            sizes[:, place] += lengths[:, segment]
    with open(local, "wb", buffering=1 << 20) as sink:
        sink.write(schemas[0])
        for first, stop in windows(sizes.sum(axis=1), WINDOW_BYTES):
            _copy_window(sink, sources, indexes, first, stop)
        sink.write(END_OF_STREAM)
    offsets = len(schemas[0]) + np.concatenate([[0], np.cumsum(sizes.reshape(-1))])
    return RunIndex(buckets, sum(index.rows for index in indexes), tuple(schemas), offsets)


def _segments(indexes: list[RunIndex]) -> tuple[list[bytes], list[list[int]]]:
    """Return the merged run's schemas (a new one at each change) and the new positions of each input run's segments."""
    schemas: list[bytes] = []
    places: list[list[int]] = []
    for index in indexes:
        places.append([])
        for schema in index.schemas:
            if not schemas or schemas[-1] != schema:
                schemas.append(schema)
            places[-1].append(len(schemas) - 1)
    return schemas, places


def _copy_window(sink: BinaryIO, sources: list[str], indexes: list[RunIndex], first: int, stop: int) -> None:
    """Copy buckets [first, stop) of all runs in bucket order: one request per run, or per 32 MiB of a longer range."""
    spans = [(int(i.offsets[first * i.segments]), int(i.offsets[stop * i.segments])) for i in indexes]
    if stop == first + 1:
        for url, (begin, end) in zip(sources, spans, strict=True):
            sink.writelines(pieces(url, begin, end))
        return
    window = [memoryview(b"".join(pieces(url, *span))) for url, span in zip(sources, spans, strict=True)]
    starts = [
        i.offsets[first * i.segments : (stop + 1) * i.segments : i.segments] - span[0]
        for i, span in zip(indexes, spans, strict=True)
    ]
    for bucket in range(stop - first):
        sink.writelines(data[start[bucket] : start[bucket + 1]] for data, start in zip(window, starts, strict=True))
