"""Measures the memory and CPU time of single tasks whose input is larger than what they may hold in memory.

    python -m benchmarks.bounded_memory copies 2000000    # normalize: copies of one text, beside 200,000 others
    python -m benchmarks.bounded_memory sources 30        # dedup: sources of 200,000 documents that share half of them
    python -m benchmarks.bounded_memory component 300000  # dedup: documents of one component, 60 shingles each
    python -m benchmarks.bounded_memory passages 2000000  # passages: copies of one line, beside 200,000 other lines

Only anonymous memory counts, as for budgets, and only what the task adds to its process. A separate process makes the
input. The checksum of the outputs shows whether two versions write the same bytes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from datakit.dedup import exact_duplicates
from datakit.dedup.partitions import Part
from datakit.dedup.phase_data import IdRange, Shared
from datakit.dedup.row_buckets import row_buckets
from datakit.dedup.verification import run_kernels, verify
from datakit.dedup.verification.cluster_shingles import schema
from datakit.engine.exchange.exchange import ExchangeWriter
from datakit.engine.exchange.row_buckets import RowBuckets
from datakit.engine.task import TaskContext, TaskResult
from datakit.normalize import sort
from datakit.normalize.columns.output_columns import output_schema
from datakit.normalize.config import Config
from datakit.normalize.phase_data import SortShared, to_plain
from datakit.normalize.route import hash_texts
from datakit.passages import find_copies as find_passage_copies
from datakit.passages.config import SearchConfig
from datakit.passages.phase_data import Search
from datakit.passages.phase_data import Shared as PassagesShared
from datakit.passages.route import PASSAGE
from datakit.storage.ids import ids_to_arrow
from datakit.storage.parquet import ShardWriter

Work = tuple[Callable[..., TaskResult], dict[str, Any], dict[str, Any]]
AT_ONCE, OTHERS = 100_000, 200_000
BANDS, SHINGLES = 14, 60
SOURCE_ROWS = 200_000
GENERATOR = np.random.default_rng(0)


def numbers(count: int) -> np.ndarray:
    """Return random numbers, uint64."""
    return GENERATOR.integers(0, 1 << 62, count, dtype=np.uint64)


def write_copies(count: int, context: TaskContext) -> list[str]:
    """Route copies of one text and 200,000 other texts to one bucket; return the runs."""
    with ExchangeWriter(context, "route", "00000", 1, 64 << 20) as writer:
        for start in range(0, count, AT_ONCE):
            others = [f"{value} " + "another text " * 8 for value in numbers(OTHERS * AT_ONCE // count)]
            texts = pa.array(["a text with many copies, " * 5] * AT_ONCE + others, pa.large_string())
            rows = np.arange(start, start + len(texts))
            names = pa.array([f"record-{row:012d}" for row in rows.tolist()])
            columns = [*hash_texts(texts), texts, np.zeros(len(texts), np.int32), rows, names]
            table = pa.table(columns, names=["high", "low", "text", "file", "position", ".id"])
            writer.write(table, np.zeros(len(texts), np.int64))
    return writer.runs


def sort_copies(count: int, runs: list[str]) -> Work:
    """Return the task that sorts these copies."""
    output, columns = output_schema(pa.schema([("id", pa.string())]), Config(), again=False)
    shared = SortShared(runs, 0, 0, "source", output.serialize().to_pybytes(), columns)
    return sort.sort_partition, {"partition": 0}, to_plain(shared)


def write_sources(count: int, context: TaskContext) -> list[str]:
    """Write the ids of sources that share half of their documents; return the paths."""
    shared = numbers(SOURCE_ROWS // 2)
    paths = [f"{number}.parquet" for number in range(count)]
    for path in paths:
        high = np.sort(np.concatenate([shared, numbers(SOURCE_ROWS // 2)]))
        with ShardWriter(f"{context.step_directory}/{path}", pa.schema([("id", pa.string())])) as writer:
            writer.write(pa.table([ids_to_arrow(high, high)], names=["id"]))
    return paths


def find_copies(count: int, paths: list[str]) -> Work:
    """Return the task that finds the documents that these sources share."""
    parts = [
        Part(path, number, 0, 1, number * SOURCE_ROWS, SOURCE_ROWS, "", path, 0, 0) for number, path in enumerate(paths)
    ]
    return exact_duplicates.find_copies, msgspec.to_builtins(IdRange(0, 0, parts)), dedup_shared(parts, [])


def write_component(count: int, context: TaskContext) -> list[str]:
    """Route variants of count / 3 texts, all in one component, to one bucket; return the runs."""
    with ExchangeWriter(context, "shingles", "00000", 1, 128 << 20) as writer:
        for start in range(0, count, AT_ONCE):
            rows = min(AT_ONCE, count - start)
            text = GENERATOR.integers(0, max(1, count // 3), (rows, 1), dtype=np.uint64)
            own = (text * np.uint64(SHINGLES) + np.arange(SHINGLES, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            edited = np.arange(SHINGLES) < GENERATOR.integers(0, SHINGLES // 6, (rows, 1))
            shingles = np.sort(np.where(edited, numbers(rows * SHINGLES).reshape(rows, -1), own), axis=1)
            keys = text * np.uint64(BANDS) + np.arange(BANDS, dtype=np.uint64)
            keys = np.where(GENERATOR.random((rows, BANDS)) < 0.5, keys, numbers(rows * BANDS).reshape(rows, -1))
            lists: list[Any] = [pa.FixedSizeListArray.from_arrays(pa.array(keys.reshape(-1)), BANDS)]
            lists += [pa.LargeListArray.from_arrays(np.arange(rows + 1) * SHINGLES, pa.array(shingles.reshape(-1)))]
            first = [np.full(rows, 3, np.uint64), np.arange(start, start + rows, dtype=np.uint64)]
            columns = [*first, numbers(rows), numbers(rows), np.zeros(rows, int), GENERATOR.integers(100, 900, rows)]
            writer.write(pa.table([*columns, *lists], schema=schema(BANDS, [])), np.zeros(rows, int))
    return writer.runs


def judge_component(count: int, runs: list[str]) -> Work:
    """Return the task that judges this component."""
    run_kernels.warm()
    return verify.judge, {"bucket": 0}, dedup_shared([Part("source", 0, 0, 1, 0, count, "", "", 0, 0)], runs)


def dedup_shared(parts: list[Part], runs: list[str]) -> dict[str, Any]:
    """Return the shared data of a phase of dedup."""
    sources = [(part.source, part.first_row) for part in parts]
    settings = (BANDS, 5, 0.8, "jaccard", ("longest",), 64)
    return msgspec.to_builtins(Shared(row_buckets(parts), sources, *settings, runs=runs))


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def measure(work: Work, context: TaskContext) -> str:
    """Run a task, and describe its CPU time, peak memory, counters and outputs."""
    before, peak, ended = anonymous_bytes(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            peak[0] = max(peak[0], anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.process_time()
    function, arguments, shared = work
    result = function(arguments, shared, context)
    seconds = time.process_time() - start
    ended.set()
    watcher.join()
    checksum = xxhash.xxh3_64_hexdigest("".join(output.xxh3 for output in result.outputs).encode())
    return f"{seconds:.1f} CPU-s, {(peak[0] - before) >> 20} MiB, outputs {checksum}, {result.counters}"


def write_passages(count: int, context: TaskContext) -> list[str]:
    """Route copies of one line and 200,000 other lines to one bucket; return the runs."""
    with ExchangeWriter(context, "passages", "00000", 1, 128 << 20) as writer:
        for start in range(0, count, AT_ONCE):
            high = np.append(np.full(AT_ONCE, 7, np.uint64), numbers(OTHERS * AT_ONCE // count))
            rows = (start + np.arange(len(high))).astype(np.uint64)
            columns = [high, high, rows, np.zeros(len(high), np.uint32), np.full(len(high), 100, np.uint32)]
            table = pa.table([*map(pa.array, columns), pa.array(np.zeros(len(high), np.uint8))], schema=PASSAGE)
            writer.write(table, np.zeros(len(high), np.int64))
    return writer.runs


def mark_passages(count: int, runs: list[str]) -> Work:
    """Return the task that marks all copies of lines that occur more than once, so that it reads all rows twice."""
    search = Search("lines", 0, SearchConfig("line", keep=0, above=1))
    shared = PassagesShared([search], [], 1, RowBuckets(count + OTHERS, 1), runs=runs)
    return find_passage_copies.find, {"bucket": 0}, msgspec.to_builtins(shared)


CASES = {
    "copies": (write_copies, sort_copies),
    "sources": (write_sources, find_copies),
    "component": (write_component, judge_component),
    "passages": (write_passages, mark_passages),
}


def main() -> None:
    """Make the input, run the task, and print its memory and CPU time."""
    name, count = sys.argv[1], int(sys.argv[2])
    write, prepare = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        context = TaskContext(folder, Path(folder))
        child = os.fork()
        if not child:
            (Path(folder) / "inputs").write_text("\n".join(write(count, context)))
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit("the input could not be made")
        inputs = (Path(folder) / "inputs").read_text().split()
        print(f"{name} {count}: {measure(prepare(count, inputs), context)}")


if __name__ == "__main__":
    main()
