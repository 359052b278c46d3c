"""Measures how long the documents of one component take if one task judges them, and if they are judged in blocks.

    python -m benchmarks.giant_component --root DIR [--documents 300000] [--blocks 4] [--workers 2]

All documents share the words of a template: most of their shingles, and the keys of one band. Two in five documents
are variants of another document, with which they also share rarer keys. The benchmark runs the real tasks in both ways
on the same rows, and prints a line for each phase (number of attempts, CPU time, time, and the peak memory of a task,
counted as for budgets). It checks that both ways give the same verdicts and counters.
"""

from __future__ import annotations

import argparse
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.dedup.giant_rows import GiantRows
from datakit.dedup.giants import plan as giants
from datakit.dedup.minhash.signatures_stage import PRELOADS
from datakit.dedup.phase_data import Routed, Shared
from datakit.dedup.verification.cluster_shingles import schema
from datakit.engine.exchange.exchange import read_buckets, run_sizes
from datakit.engine.exchange.row_buckets import RowBuckets
from datakit.engine.ledger.ledger import AttemptLine, read_ledger
from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler.driver import run_step
from datakit.engine.task import Output, Phase, Plan, Step, Task, TaskContext, TaskResult
from datakit.engine.worker.local_executor import LocalExecutor

BANDS, SHINGLES, TEMPLATE = 14, 200, 140
FILES, BUCKETS, AT_ONCE = 8, 4, 20_000
IN_ONE_TASK, IN_BLOCKS = "one-task", "blocks"
MODULE = "benchmarks.giant_component"


def generate(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the rows of some of the documents."""
    number, common = arguments["file"], msgspec.convert(shared["common"], Shared)
    cuts = [common.buckets.rows * place // FILES for place in (number, number + 1)]
    with GiantRows(context, f"{number:05d}", common, 128 << 20) as rows:
        for first in range(cuts[0], cuts[1], AT_ONCE):
            rows.take(documents(first, min(first + AT_ONCE, cuts[1]), common.buckets.rows))
    details = msgspec.to_builtins(Routed([], rows.runs, rows.described()))
    return TaskResult(rows.outputs, details=details)


def documents(first: int, stop: int, count: int) -> pa.Table:
    """Return documents [first, stop) of `count` documents."""
    generator, rows = np.random.default_rng(first), stop - first

    def numbers(*shape: int) -> np.ndarray:
        return generator.integers(0, 1 << 62, shape, dtype=np.uint64)

    origin = np.where(generator.random(rows) < 0.4, generator.integers(0, count // 20, rows), np.arange(first, stop))
    text = origin.astype(np.uint64)[:, None]
    golden = np.uint64(0x9E3779B97F4A7C15)
    own = (text * np.uint64(SHINGLES) + np.arange(SHINGLES, dtype=np.uint64)) * golden
    own[:, :TEMPLATE] = np.arange(TEMPLATE, dtype=np.uint64) * golden
    edited = np.arange(SHINGLES) >= SHINGLES - generator.integers(0, SHINGLES // 8, (rows, 1))
    shingles = np.sort(np.where(edited, numbers(rows, SHINGLES), own), axis=1)
    keys = (text * np.uint64(BANDS) + np.arange(BANDS, dtype=np.uint64)) * golden
    keys = np.where(generator.random((rows, BANDS)) < 0.5, keys, numbers(rows, BANDS))
    keys[:, 0] = 7
    lists: list[Any] = [pa.FixedSizeListArray.from_arrays(pa.array(keys.reshape(-1)), BANDS)]
    lists += [pa.LargeListArray.from_arrays(np.arange(rows + 1) * SHINGLES, pa.array(shingles.reshape(-1)))]
    row = np.arange(first, stop, dtype=np.uint64)
    columns = [np.zeros(rows, np.uint64), row, numbers(rows), numbers(rows), np.zeros(rows, int)]
    return pa.table([*columns, generator.integers(900, 1100, rows), *lists], schema=schema(BANDS, []))


def plan(step: Step, count: int, in_blocks: bool) -> Plan:
    """Write the rows, judge the documents, and describe the verdicts."""
    shared = Shared(RowBuckets(count, 1), [("s", 0)], BANDS, 5, 0.8, "jaccard", ("longest",), 64, giants=[(0, count)],
                    giant_buckets=BUCKETS if in_blocks else 1)  # fmt: skip
    tasks = tuple(Task(f"{number}", f"{MODULE}:generate", {"file": number}) for number in range(FILES))
    made = yield Phase("made", tasks, {"common": msgspec.to_builtins(shared)}, PRELOADS, memory_bytes=1 << 30)
    if in_blocks:
        judged, _ = yield from giants.judge_giants(step, made, shared)
    else:
        sizes = {output.path: output.bytes for result in made for output in result.outputs}
        runs = [run for result in made for run in result.details["giant_runs"]]
        common = msgspec.to_builtins(replace(shared, runs=runs))
        task = Task("0", "datakit.dedup.verification.verify:judge", {"bucket": 0}, sum(sizes[run] for run in runs))
        judged = yield Phase("verify", (task,), common, PRELOADS, memory_bytes=giants.MEMORY_BYTES,
                             memory_per_input_byte=0.0)  # fmt: skip
    runs = list(run_sizes(judged))
    yield Phase("digest", (Task("0", f"{MODULE}:digest", {"runs": runs}),), {}, PRELOADS)
    return Output([], schema(BANDS, []))


def digest(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Count the verdicts, and compute a checksum that does not depend on their order."""
    rows = checksum = 0
    for table in read_buckets(context.step_directory, arguments["runs"], 0, 1, context.scratch):
        values = np.zeros(table.num_rows, np.uint64)
        for column in table.columns:
            values = (values ^ column.to_numpy().view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        rows, checksum = rows + table.num_rows, (checksum + int(values.sum(dtype=np.uint64))) % 2**62
    return TaskResult(counters={"verdicts": rows, "checksum": checksum})


def report(directory: Path) -> Counter[str]:
    """Print a line per phase and the sums over those that judge, and return the counters."""
    phases = dict[str, list[AttemptLine]]()
    counters = Counter[str]()
    for line in read_ledger(str(directory)):
        if isinstance(line, AttemptLine):
            phases.setdefault(line.phase, []).append(line)
            counters.update(line.result.counters if line.result else {})
    print(f"{'phase':16}{'attempts':>9}{'CPU s':>9}{'wall s':>9}{'peak MiB':>10}")
    for phase, lines in phases.items():
        print_line(phase, lines)
    print_line("judging", [line for name, some in phases.items() if name not in ("made", "digest") for line in some])
    return counters


def print_line(name: str, lines: Sequence[AttemptLine]) -> None:
    """Print the figures of some attempts."""
    spent = max(line.time for line in lines) - min(line.time - line.seconds for line in lines)
    cpu, peak = sum(line.cpu_seconds for line in lines), max(line.peak_memory for line in lines)
    print(f"{name:16}{len(lines):9}{cpu:9.1f}{spent:9.1f}{peak / 2**20:10.0f}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, type=Path)
    parser.add_argument("--documents", type=int, default=300_000)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    giants.GIANT = -(-arguments.documents // arguments.blocks) * giants.GIANT_BLOCKS
    found = [run(arguments, name) for name in (IN_ONE_TASK, IN_BLOCKS)]
    print(dict(found[0]))
    assert found[0] == found[1], found[1]


def run(arguments: argparse.Namespace, name: str) -> Counter[str]:
    """Judge the documents in one of the two ways, and return the counters."""
    directory, executor = arguments.root / name, LocalExecutor(arguments.workers)
    shutil.rmtree(directory, ignore_errors=True)
    step = Step(name, "benchmark", str(directory.absolute()), "c" * 32, {})
    try:
        run_step(step, plan(step, arguments.documents, name == IN_BLOCKS), lambda: executor, Observer())
    finally:
        executor.close()
    print(name)
    return report(directory)


if __name__ == "__main__":
    main()
