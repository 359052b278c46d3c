"""Merges exchange runs into fewer, larger runs if reducers would otherwise need over a million reads (runs x reducers).

If each of R reducers reads M runs, they make 2 x M x R requests in total: 8 million for M = R = 2,000. If groups of
sqrt(M) consecutive runs are merged first, the reducers make only 2 x R x sqrt(M) requests. Record batches are copied as
bytes without decoding. The order of the rows in a bucket (by run, then by position in the run) is preserved, and so are
the schemas (see `run_file.py`).
Cost: one copy of the data. If the indexes of a group take more than INDEX_BYTES, they are read twice, the second time
one range of buckets at a time.
Memory: at most two copies of a window (consecutive buckets of at most 64 MiB in all), and twice INDEX_BYTES for
indexes, whatever the number of runs and buckets. A merged run with so many schemas that its own index would exceed
INDEX_BYTES is written as several runs.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from datakit.engine.exchange.run_file import END_OF_STREAM, INDEX_SUFFIX, RunIndex, pieces, read_index, windows
from datakit.engine.task import OutputFile, Phase, Step, Task, TaskContext, TaskResult
from datakit.errors import CorruptError
from datakit.storage import atomic, urls

MERGED = "-merge"  # the suffix of the names of merge phases
MOST_READS = 10**6  # more reads (runs x reducers) cause a merge; an object store serves this many within minutes
WINDOW_BYTES = 64 << 20
INDEX_BYTES = 64 << 20  # limit on the total size of the input indexes in memory, and on a merged run's index
MEMORY_BYTES = 512 << 20  # two copies of a window, the indexes, temporary copies of the merged index, and a margin


def run_sizes(results: Iterable[TaskResult]) -> dict[str, int]:
    """Return the runs that tasks have written, in order: path -> size in bytes."""
    found = dict[str, int]()
    for result in results:
        sizes = {output.path: output.bytes for output in result.outputs}
        found |= {run: sizes[run] for run in result.details["runs"]}
    return found


def both(phase: str) -> tuple[str, str]:
    """Return the two folders below `exchange/` that hold a phase's runs: those that its tasks wrote, and the merged
    ones.
    """
    return phase, f"{phase}{MERGED}"


def merged(
    step: Step, phase: str, runs: Mapping[str, int], readers: int
) -> Generator[Phase, Sequence[TaskResult], list[str]]:
    """Merge the runs (see `run_sizes`) if runs x reducers exceeds a million, and return the paths of the runs to read.
    `readers` is the number of reducers.

    Call this function as `runs = yield from merged(step, "route", run_sizes(results), readers)`.
    """
    paths = list(runs)
    if len(paths) * readers <= MOST_READS:
        return paths
    size = math.isqrt(len(paths) - 1) + 1
    name = f"{phase}{MERGED}"
    groups = [paths[start : start + size] for start in range(0, len(paths), size)]
    keyed = {f"{number:05d}": group for number, group in enumerate(groups)}
    function = "datakit.engine.exchange.merge:merge_runs"
    tasks = [
        Task(key, function, {"phase": name, "key": key, "runs": group}, sum(runs[run] for run in group))
        for key, group in keyed.items()
    ]
    results = yield Phase(name, tuple(tasks), memory_bytes=MEMORY_BYTES, memory_per_input_byte=0.0)
    return [run for result in results for run in result.details["runs"]]


def merge_runs(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Merge one group of runs into the run `exchange/<phase>/<key>.arrow` or, if that would have too many schemas, into
    several runs. This is a task function.
    """
    sources = [urls.join(context.step_directory, run) for run in arguments["runs"]]
    outputs: list[OutputFile] = []
    paths: list[str] = []
    while sources:
        total = _Total(arguments["phase"], sources)
        path = f"exchange/{arguments['phase']}/{arguments['key']}{f'-{len(paths)}' if paths else ''}.arrow"
        url = urls.join(context.step_directory, path)
        with atomic.staging(url) as local:
            index = _merge(local, total)
            data = atomic.commit_file(local, url)
        sidecar = atomic.commit_bytes(index.encode(), url + INDEX_SUFFIX)
        outputs.append(OutputFile(path, data.bytes, data.xxh3, index.rows))
        outputs.append(OutputFile(path + INDEX_SUFFIX, sidecar.bytes, sidecar.xxh3))
        paths.append(path)
        sources = sources[len(total.sources) :]
    records, size = sum(file.rows for file in outputs), sum(file.bytes for file in outputs[::2])
    return TaskResult(tuple(outputs), details={"runs": paths}, records=records, bytes_read=size)


class _Total:
    """Adds up the indexes of the first runs in a list; takes as many runs as fit into one merged run.

    schemas: the schemas of the merged run's segments; each change of schema starts a segment. sizes: for each segment,
    the number of bytes in each bucket, int64 [buckets]. indexes: the indexes of these runs, or None if they take more
    than INDEX_BYTES.
    """

    def __init__(self, phase: str, sources: list[str]) -> None:
        self.schemas: list[bytes] = []
        self.sizes: list[np.ndarray] = []
        self.indexes: list[RunIndex] | None = []
        self.buckets = self.rows = self.segments = 0
        for number, url in enumerate(sources):
            index = read_index(url)
            if self.buckets not in (0, index.buckets):
                raise CorruptError(
                    f"the runs of {phase} differ in their number of buckets; remove the step's folder exchange/ "
                    "and run again"
                )
            self.buckets = index.buckets
            if number and (len(self.schemas) + index.segments) * self.buckets * 8 > INDEX_BYTES:
                sources = sources[:number]
                break
            self._add(index)
        self.sources = sources

    def _add(self, index: RunIndex) -> None:
        lengths = np.diff(index.offsets).reshape(self.buckets, index.segments)
        for segment, schema in enumerate(index.schemas):
            if not self.schemas or self.schemas[-1] != schema:
                self.schemas.append(schema)
                self.sizes.append(np.zeros(self.buckets, np.int64))
            self.sizes[-1] += lengths[:, segment]
        self.rows, self.segments = self.rows + index.rows, self.segments + index.segments
        if self.indexes is not None:
            self.indexes.append(index)
            if self.segments * self.buckets * 8 > INDEX_BYTES:
                self.indexes = None

    def parts(self) -> Iterator[tuple[int, int, list[RunIndex]]]:
        """Yield consecutive ranges of buckets [first, stop), each with the part of every run's index for that range."""
        if self.indexes is not None:
            yield 0, self.buckets, self.indexes
            return
        step = max(1, INDEX_BYTES // (8 * self.segments))
        for first in range(0, self.buckets, step):
            stop = min(first + step, self.buckets)
            yield first, stop, [read_index(url, first, stop) for url in self.sources]


def _merge(local: Path, total: _Total) -> RunIndex:
    whole = np.sum(total.sizes, axis=0)
    with open(local, "wb", buffering=1 << 20) as sink:
        sink.write(total.schemas[0])
        for start, end, indexes in total.parts():
            for first, stop in windows(whole[start:end], WINDOW_BYTES):
                _copy_window(sink, total.sources, indexes, first, stop)
        sink.write(END_OF_STREAM)
    offsets = len(total.schemas[0]) + np.concatenate([[0], np.cumsum(np.stack(total.sizes, axis=1).reshape(-1))])
    return RunIndex(total.buckets, total.rows, tuple(total.schemas), offsets)


def _copy_window(sink: BinaryIO, sources: list[str], indexes: list[RunIndex], first: int, stop: int) -> None:
    """Copy buckets [first, stop) of all runs in bucket order. Each request reads at most 32 MiB of one run. Buckets
    are numbered from the first one that the indexes cover.
    """
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
