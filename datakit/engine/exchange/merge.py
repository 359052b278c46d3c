"""Merges the runs of an exchange if there are so many runs, or so many buckets, that reading them directly would take
too many requests.

The buckets are divided into C ranges and the runs into G groups of consecutive runs. A task merges one range of one
group: it reads one range of bytes from each run of the group, divides the rows among the buckets of its range, and
writes one file. So each run is read once for each range, and a reducer reads one file of each group:

    runs M, reducers R, data D      requests (two each: a part of the index, and the bytes)
    without a merge                 2 x M x R
    merged                          2 x (M x C + R x G), where G x C = D / TASK_BYTES or 1

C is the power of two that needs the fewest requests (`divided`): about 4 x sqrt(M x R x G x C) in all. For M = 100,000
runs, R = 2**17 reducers and D = 75 TB, C is 256 and G is 273, which takes 123 million requests instead of 26 billion. A
merge task makes 2 x M / G requests, whatever its size, and a group has at most MOST_RUNS runs. The order of the rows in
a bucket (by run, then by position in the run) is preserved, and so are the schemas.

Runs are merged if the reads (runs x reducers) exceed MOST_READS, or if the runs of the map tasks divide the buckets
more coarsely than the reducers do (`run_names.py`). Runs of earlier versions, which have all buckets, are merged, too.

Cost: decoding, sorting and writing the data once, like a map task. Disk: TASK_BYTES, or twice as much in the temporary
directory if the step is in an object store. Memory: the budget of an exchange writer, for any number of runs and
buckets.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from datakit.engine.exchange import run_names
from datakit.engine.task import Phase, Step, Task, TaskResult

FUNCTION = "datakit.engine.exchange.merge_tasks:merge_runs"
MERGED = "-merge"  # the suffix of the names of merge phases
MOST_READS = 10**6  # more reads (runs x reducers) cause a merge; an object store serves this many within minutes
TASK_BYTES = 1 << 30  # mean size of what a task merges
MOST_RUNS = 1 << 12  # most runs in a group; reading one range of each takes half a minute in an object store
MOST_PIECE_BUCKETS = 1 << 12  # most buckets in a merged file, so that one request reads its index
MEMORY_BYTES = 512 << 20  # the writer's budget, the rows of a run that are being written, and a margin


@dataclass(frozen=True)
class MergeWork:
    """The arguments of a merge task. phase, key: the folder and the name of the merged file. runs: a group of runs.
    first, stop: the range of buckets, numbered as in the runs of map tasks. buckets: the number of buckets of the
    exchange.
    """

    phase: str
    key: str
    runs: list[str]
    first: int
    stop: int
    buckets: int


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
    step: Step, phase: str, runs: Mapping[str, int], buckets: int, readers: int, *, times: int = 1
) -> Generator[Phase, Sequence[TaskResult], list[str]]:
    """Merge the runs (see `run_sizes`) if that is necessary, and return the names of the runs to read.

    buckets: the number of buckets of the exchange. readers: the number of ranges of buckets that are read; if there are
    at most MOST_BUCKETS, they are equal. times: how often each range is read. Call this function as
    `runs = yield from merged(step, "route", run_sizes(results), buckets, readers)`.
    """
    paths, finer = list(runs), readers > run_names.MOST_BUCKETS and run_names.buckets_each(buckets) > 1
    if not paths or not (finer or len(paths) * readers * times > MOST_READS):
        return paths
    groups, pieces = divided(len(paths), sum(runs.values()), buckets, readers * times)
    name, here = f"{phase}{MERGED}", min(buckets, run_names.MOST_BUCKETS)
    cuts = [len(paths) * number // groups for number in range(groups + 1)]
    names = [run_names.merged_run(f"exchange/{name}", number, pieces, buckets // pieces) for number in range(groups)]
    tasks = list[Task]()
    for number, run in enumerate(names):
        group = paths[cuts[number] : cuts[number + 1]]  # shared by the tasks of the group
        size = sum(runs[path] for path in group)
        for piece in range(pieces):
            key, ends = f"{number:05d}-{piece:05d}", (here * piece // pieces, here * (piece + 1) // pieces)
            work = MergeWork(name, f"{key}{run.partition('*')[2].removesuffix('.arrow')}", [], *ends, buckets)
            arguments = msgspec.to_builtins(work) | {"runs": group}
            # a range may hold most of a group, if most rows have one key; so the limit on what it writes is the group's
            tasks.append(Task(key, FUNCTION, arguments, size // pieces, stored_bytes=size))
    yield Phase(name, tuple(tasks), memory_bytes=MEMORY_BYTES, memory_per_input_byte=0.0)
    return names


def divided(runs: int, size: int, buckets: int, readers: int) -> tuple[int, int]:
    """Return the number of groups of runs and the number of ranges of buckets that need the fewest requests.

    >>> divided(100_000, 75 * 10**12, 1 << 17, 1 << 17), divided(2_000, 10**9, 1024, 1024)
    ((273, 256), (1, 1))
    >>> divided(65_536, 10**9, 1024, 1024)  # many small runs
    (16, 1)
    """
    tasks = max(1, -(-size // TASK_BYTES))
    most = min(buckets, run_names.MOST_BUCKETS)
    least = min(most, max(1, buckets // MOST_PIECE_BUCKETS))

    def groups(pieces: int) -> int:
        return max(min(runs, -(-tasks // pieces)), -(-runs // MOST_RUNS))

    choices = [1 << bit for bit in range(least.bit_length() - 1, most.bit_length())]
    pieces = min(choices, key=lambda pieces: runs * pieces + readers * groups(pieces))
    return groups(pieces), pieces
