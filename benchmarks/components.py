"""Measures the search for components: runs the real tasks on generated edges, with a limit on the memory of a task.

    python -m benchmarks.components --root DIR [--scale 0.01] [--memory 512] [--workers 2] [--compare] [--ascending]

At scale 1, there are 200 million clustered documents: 50 chains of a million links, a star with 50 million spokes, and
100 million copies of one text, each of which two bands connect with the first copy. Row numbers are in random order, as
they are within a source. With `--ascending`, the row numbers of a chain ascend, which needs the most rounds. The
benchmark prints a line for each phase (number of attempts, CPU time, time, and the peak memory of a task, counted as
for budgets), the time, the number of rounds, and the maximum size of the exchange. It checks the numbers of clustered
documents and of components. With `--compare`, it also runs the earlier algorithm, which merges forests in a tree of
tasks and labels all documents in one task, and compares all labels.
"""

from __future__ import annotations

import argparse
import shutil
import threading
import time
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.dedup.clusters.bands import FOREST
from datakit.dedup.clusters.component_phases import label_phases
from datakit.dedup.clusters.components import spanning_forest
from datakit.dedup.clusters.labels import LABELS
from datakit.dedup.giants.plan import GIANT
from datakit.dedup.minhash.signatures_stage import PRELOADS
from datakit.dedup.partitions import Part
from datakit.dedup.phase_data import ForestFiles, PartRange, details_of
from datakit.dedup.row_buckets import read_rows
from datakit.engine.exchange.exchange import run_sizes
from datakit.engine.exchange.row_buckets import RowBuckets
from datakit.engine.ledger.ledger import AttemptLine, read_ledger
from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler.driver import run_step
from datakit.engine.task import Output, OutputFile, Phase, Plan, Step, Task, TaskContext, TaskResult
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.storage import urls
from datakit.storage.parquet import ShardWriter, iterate_shard, read_shard

DOCUMENTS, CHAIN, BANDS = 200_000_000, 1_000_000, 2
FILE_EDGES = 1 << 20
PARTS = 16
FAN_IN = 16  # the number of forests that a task of the earlier algorithm merges
MODULE = "benchmarks.components"
Results = Sequence[TaskResult]


def shuffled(numbers: np.ndarray, count: int) -> np.ndarray:
    """Map numbers in [0, count) to other numbers in this range, one to one."""
    bits = max(2, (count - 1).bit_length())
    mask, half = np.uint64((1 << bits) - 1), np.uint64(bits // 2)
    found = numbers.astype(np.uint64)
    outside = np.arange(len(found))
    while len(outside):  # numbers outside of the range are mapped again until they are inside
        values = found[outside]
        for odd in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
            values = (values * np.uint64(odd) + np.uint64(0x2545F491)) & mask
            values ^= values >> half
        found[outside] = values
        outside = outside[values >= np.uint64(count)]
    return found


def layout(documents: int) -> tuple[int, int, int]:
    """Return the number of chained documents, the end of the star's documents, and the length of a chain."""
    chained = documents // 4
    return chained, documents // 2, min(CHAIN, max(2, chained // 2))


def generate(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write every n-th edge, so that a file holds no two neighboring links of a chain."""
    file, files, documents = arguments["file"], shared["files"], shared["documents"]
    chained, star, chain = layout(documents)
    links = np.arange(file, chained - 1, files)
    links = links[links % chain != chain - 1]
    edges = [(links, links + 1)]
    spokes = np.arange(chained + 1 + file, star, files)
    edges.append((spokes, np.full_like(spokes, chained)))
    for band in range(BANDS):
        copies = np.arange(star + 1 + (file + band) % files, documents, files)
        edges.append((copies, np.full_like(copies, star)))
    left, right = (np.concatenate(ends) for ends in zip(*edges, strict=True))
    if not shared["ascending"]:
        left, right = shuffled(left, documents), shuffled(right, documents)
    left, right = left.astype(np.uint64), right.astype(np.uint64)
    path = f"exchange/forest/bucket-{file:05d}.parquet"
    return write(np.maximum(left, right), np.minimum(left, right), path, context)


def write(row: np.ndarray, root: np.ndarray, path: str, context: TaskContext) -> TaskResult:
    """Write a forest file."""
    with ShardWriter(urls.join(context.step_directory, path), FOREST) as writer:
        writer.write(pa.table([row, root], schema=FOREST))
    output = OutputFile(path, writer.info.bytes, writer.info.xxh3, len(row))
    return TaskResult((output,), details=msgspec.to_builtins(ForestFiles([path], len(row))))


def merge(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Merge forests as the earlier algorithm did; the last task also adds the roots."""
    tables = [read_shard(urls.join(context.step_directory, path)) for path in arguments["forests"]]
    edges = pa.concat_tables(tables)
    row, root = spanning_forest(edges["row"].to_numpy(), edges["root"].to_numpy())
    if arguments["last"]:
        roots = np.unique(root)
        row, root = np.concatenate([roots, row]), np.concatenate([roots, root])
        order = np.argsort(row)
        row, root = row[order], root[order]
    return write(row, root, f"exchange/earlier/{arguments['name']}.parquet", context)


def compare(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Compare the labels of one part with those of the earlier algorithm."""
    number, first, stop = arguments["part"], arguments["first"], arguments["stop"]
    part = Part("s", 0, number, PARTS, first, stop - first, "", "", 0, 0)
    tables = read_rows(shared["runs"], RowBuckets(shared["documents"], PARTS), PartRange(number, [part]), context)
    ours = pa.concat_tables([LABELS.empty_table(), *tables])
    rows, labels = ours["row"].to_numpy(), ours["component"].to_numpy()
    order = np.argsort(rows)
    rows, labels = rows[order], labels[order]
    compared = differences = 0
    for table in iterate_shard(urls.join(context.step_directory, shared["earlier"])):
        theirs = table["row"].to_numpy()
        inside = (theirs >= first) & (theirs < stop)
        theirs, components = theirs[inside], table["root"].to_numpy()[inside]
        differences += int(not np.array_equal(rows[compared : compared + len(theirs)], theirs))
        differences += int((labels[compared : compared + len(theirs)] != components).sum())
        compared += len(theirs)
    return TaskResult(counters={"compared": compared, "different": differences + len(rows) - compared})


def merge_all(results: Results, memory: int) -> Generator[Phase, Results, str]:
    """Yield the phases of the earlier algorithm, and return the file with all labels."""
    level = 0
    while True:
        forests = [path for result in details_of(results, ForestFiles) for path in result.forests]
        last = len(forests) <= FAN_IN
        name = "earlier-labels" if last else f"earlier-{level}"
        groups = [forests[start : start + FAN_IN] for start in range(0, len(forests), FAN_IN)]
        tasks = tuple(
            Task(f"{n}", f"{MODULE}:merge", {"forests": group, "name": f"{name}-{n}", "last": last})
            for n, group in enumerate(groups)
        )
        results = yield Phase(name, tasks, {}, PRELOADS, memory_bytes=memory, memory_per_input_byte=0.0)
        if last:
            return results[0].outputs[0].path
        level += 1


def plan(step: Step, arguments: argparse.Namespace, earlier_memory: int) -> Plan:
    """Generate edges, label all documents and, if asked to, compare the labels."""
    documents = max(16, int(DOCUMENTS * arguments.scale))
    chained, star, chain = layout(documents)
    files = -(-(star + BANDS * (documents - star)) // FILE_EDGES)
    shared = {"files": files, "documents": documents, "ascending": arguments.ascending}
    tasks = tuple(Task(f"{n}", f"{MODULE}:generate", {"file": n}) for n in range(files))
    made = yield Phase("buckets", tasks, shared, PRELOADS)
    earlier = (yield from merge_all(made, earlier_memory)) if arguments.compare else ""
    cuts = np.linspace(0, documents, PARTS + 1).astype(int).tolist()
    labelled = yield from label_phases(step, made, RowBuckets(documents, PARTS), arguments.memory << 20, GIANT)
    clustered, clusters = (sum(r.counters[f"dedup/{name}"] for r in labelled) for name in ("clustered", "clusters"))
    assert (clustered, clusters) == (documents, -(-chained // chain) + 2), (clustered, clusters)
    if arguments.compare:
        shared = {"runs": list(run_sizes(labelled)), "earlier": earlier, "documents": documents}
        checks = [{"part": n, "first": cuts[n], "stop": cuts[n + 1]} for n in range(PARTS)]
        tasks = tuple(Task(f"{check['part']}", f"{MODULE}:compare", check) for check in checks)
        compared = yield Phase("compare", tasks, shared, PRELOADS, memory_bytes=earlier_memory)
        different = sum(result.counters["different"] for result in compared)
        assert sum(result.counters["compared"] for result in compared) == documents
        print(f"{documents:,} labels compared, {different} differ")
    return Output([], FOREST)


class DiskUse:
    """Samples the size of a folder in a thread. most: the maximum of the sum of file sizes, in bytes."""

    def __init__(self, folder: Path) -> None:
        self.most = 0
        self._folder, self._stop = folder, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            if not (self._folder / "links").exists() and not (self._folder / "large-1").exists():
                continue  # only the generated edges
            sizes = 0
            for path in self._folder.rglob("*"):
                try:
                    sizes += path.stat().st_size if "earlier" not in path.parts else 0
                except FileNotFoundError:
                    continue
            self.most = max(self.most, sizes)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, type=Path)
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--memory", type=int, default=512)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--earlier-memory", type=int, default=12 << 10, help="MiB for a task of the earlier algorithm")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--ascending", action="store_true")
    arguments = parser.parse_args()
    directory = arguments.root / "components"
    shutil.rmtree(directory, ignore_errors=True)
    step = Step("components", "benchmark", str(directory.absolute()), "c" * 32, {})
    disk, executor, started = DiskUse(directory / "exchange"), LocalExecutor(arguments.workers), time.monotonic()
    try:
        run_step(step, plan(step, arguments, arguments.earlier_memory << 20), lambda: executor, Observer())
    finally:
        executor.close()
        disk.close()
    report(directory, time.monotonic() - started, disk.most)


def report(directory: Path, seconds: float, disk: int) -> None:
    """Print a line per phase, and the totals of both algorithms."""
    tasks, cpu, peak, wall = Counter[str](), Counter[str](), dict[str, int](), dict[str, list[float]]()
    for line in read_ledger(str(directory)):
        if isinstance(line, AttemptLine):
            tasks[line.phase] += 1
            cpu[line.phase] += line.cpu_seconds  # pyright: ignore[reportArgumentType] - a sum of floats
            peak[line.phase] = max(peak.get(line.phase, 0), line.peak_memory)
            wall.setdefault(line.phase, []).extend((line.time - line.seconds, line.time))
    print(f"{'phase':16}{'attempts':>9}{'CPU s':>9}{'wall s':>9}{'peak MiB':>10}")
    for phase, count in tasks.items():
        spent = max(wall[phase]) - min(wall[phase])
        print(f"{phase:16}{count:9}{cpu[phase]:9.1f}{spent:9.1f}{peak[phase] / 2**20:10.0f}")
    rounds = sum(phase.startswith("large-") for phase in tasks)
    mine = [phase for phase in tasks if not phase.startswith(("buckets", "earlier", "compare"))]
    theirs = [phase for phase in tasks if phase.startswith("earlier")]
    for name, phases in (("rounds", mine), ("earlier", theirs)):
        if phases:
            ends = [moment for phase in phases for moment in wall[phase]]
            total, most = sum(cpu[phase] for phase in phases), max(peak[phase] for phase in phases)
            spent = max(ends) - min(ends)
            print(f"{name}: {total:.1f} CPU s, {spent:.1f} s, largest task {most / 2**20:.0f} MiB")
    print(f"{rounds} rounds; largest exchange {disk / 1e9:.2f} GB; {seconds:.0f} s in all")


if __name__ == "__main__":
    main()
