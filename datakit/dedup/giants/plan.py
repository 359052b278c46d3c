"""Plans the phases that judge giant components, block by block, and cuts them into blocks.

A component is judged by one rule, document by document in survivor order, so its documents seem to need one task. But
whether a document is retained depends on its comparisons alone, and most of them can be made by other tasks, as soon as
the blocks before it are settled:

    blocks       the rows of each giant component are cut into blocks, in survivor order
    settle-0     block 0 of each giant component is judged
    probe-0      the documents of each later block are compared with those retained in block 0, all at once
    settle-1     block 1 is judged: the rule is replayed with the outcomes of these comparisons
    probe-1, ... and so on, up to the last block

The verdicts and the counters are those of one task that judges the whole component. Memory and scratch space depend on
the size of a block, not on that of a component. The number of phases is twice the largest number of blocks, so blocks
grow with their component. Each document is read once for each earlier block, and what a probe learns about it is stored
until its block is settled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace

import msgspec

from datakit.dedup.giant_rows import EXCHANGE, combined
from datakit.dedup.giants import cut
from datakit.dedup.giants.work import CutShared, Giant, ProbeWork, Settled, SettleWork
from datakit.dedup.minhash.signatures_stage import PRELOADS
from datakit.dedup.phase_data import Described, Judged, Labelled, Routed, Shared, details_of
from datakit.dedup.survivor_cuts import splitters
from datakit.engine.exchange.exchange import both, merged, run_sizes
from datakit.engine.exchange.row_buckets import power_of_two
from datakit.engine.task import Phase, Preload, Step, Task, TaskResult

GIANT = 1 << 20  # a component with more documents is judged in blocks; one with less than half of them never is
GIANT_BLOCKS = 4  # blocks of a component with this number of documents
MOST_BLOCKS = 32  # blocks of a larger component, unless they would be larger than LARGEST_BLOCK
LARGEST_BLOCK = 1 << 22  # documents
MEMORY_BYTES = 384 << 20  # of every task: sorting in blocks, an exchange writer, the libraries

KERNELS = "datakit.dedup.giants.prober"
GIANT_PRELOADS = (*PRELOADS, Preload(KERNELS, f"{KERNELS}:warm", kernels=True))

Results = Sequence[TaskResult]


def giants_among(labelled: Sequence[Labelled]) -> list[tuple[int, int]]:
    """Return the giant components, in ascending order, and about how many documents each has."""
    sizes = Counter[int]()
    for one in labelled:
        sizes.update(dict(one.large))
    return sorted((component, size) for component, size in sizes.items() if size > GIANT // 2)


def block_count(documents: int) -> int:
    """Return into how many blocks a component is cut.

    >>> [block_count(GIANT * size) for size in (1, 3, 100, 1000)]
    [4, 12, 32, 250]
    """
    block = min(max(GIANT // GIANT_BLOCKS, documents // MOST_BLOCKS, 1), LARGEST_BLOCK)
    return -(-documents // block)


def judge_giants(
    step: Step, routed: Results, shared: Shared
) -> Generator[Phase, Results, tuple[list[TaskResult], list[Judged]]]:
    """Yield all phases; none if there are no giant components. Return the results of the tasks that wrote verdicts, and
    a description of each giant component. routed: the results of phase `shingles`.
    """
    details = details_of(routed, Routed)
    giants = _cut(combined([described for one in details for described in one.described]))
    if not giants:
        return [], []
    buckets, sizes = power_of_two(sum(giant.blocks for giant in giants)), _giant_runs(routed, details)
    runs = yield from merged(step, EXCHANGE, sizes, shared.giant_buckets, readers=shared.giant_buckets)
    size = sum(sizes.values()) // shared.giant_buckets
    work = [Task(f"{one:05d}", "datakit.dedup.giants.cut:cut", {"bucket": one}, size) for one in
            range(shared.giant_buckets)]  # fmt: skip
    common = CutShared(runs, shared.prefer, giants, buckets)
    written = yield _phase("blocks", work, common, EXCHANGE)
    most, found = max(giant.blocks for giant in giants), run_sizes(written)
    runs = yield from merged(step, cut.EXCHANGE, found, buckets, readers=buckets, times=-(-most // 2))
    block_bytes = sum(found.values()) // buckets
    rounds = _Rounds(giants, replace(shared, runs=runs), block_bytes)
    return (yield from rounds.phases(most))


def _cut(described: Sequence[Described]) -> list[Giant]:
    giants, first = list[Giant](), 0
    for one in described:
        starts = splitters(one.sample, block_count(one.documents))
        giants.append(Giant(one.component, one.documents, one.high, one.low, starts, first))
        first += giants[-1].blocks
    return giants


def _giant_runs(routed: Results, details: Sequence[Routed]) -> dict[str, int]:
    sizes = {output.path: output.bytes for result in routed for output in result.outputs}
    return {run: sizes[run] for one in details for run in one.giant_runs}


def _phase(name: str, tasks: Sequence[Task], shared: Shared | CutShared, *last_read: str) -> Phase:
    """Return a phase. last_read: the exchanges that it reads and no later phase does."""
    plain, drops = msgspec.to_builtins(shared), tuple(folder for one in last_read for folder in both(one))
    return Phase(name, tuple(tasks), plain, GIANT_PRELOADS, memory_bytes=MEMORY_BYTES, memory_per_input_byte=0.0,
                 drops=drops)  # fmt: skip


class _Rounds:
    """Plans the phases that settle and probe blocks."""

    def __init__(self, giants: Sequence[Giant], shared: Shared, block_bytes: int) -> None:
        self._giants, self._shared, self._size = giants, shared, block_bytes
        self._retained = dict[int, Settled]()  # by the bucket of a block
        self._answers = dict[int, list[str]]()
        self._verdicts = list[TaskResult]()

    def phases(self, most: int) -> Generator[Phase, Results, tuple[list[TaskResult], list[Judged]]]:
        """Yield the phases for components of up to `most` blocks."""
        for number in range(most):
            work = [self._settle(giant, number) for giant in self._giants if number < giant.blocks]
            read = (f"answers-{number}", *([cut.EXCHANGE] if number == most - 1 else []))
            results = yield _phase(f"settle-{number}", work, self._shared, *read)
            self._verdicts += results
            for task, settled in zip(work, details_of(results, Settled), strict=True):
                self._retained[task.arguments["bucket"]] = settled
            if number < most - 1:
                work = [task for giant in self._giants for task in self._probes(giant, number)]
                results = yield _phase(f"probe-{number}", work, self._shared, f"retained-{number}")
                for task, result in zip(work, results, strict=True):
                    self._answers.setdefault(task.arguments["bucket"], []).extend(result.details["runs"])
        return self._verdicts, [self._judged(giant) for giant in self._giants]

    def _settle(self, giant: Giant, number: int) -> Task:
        bucket = giant.first + number
        work = SettleWork(number, bucket, giant.high, giant.low, self._answers.get(bucket, []))
        return Task(f"{bucket:05d}", "datakit.dedup.giants.settle:settle", msgspec.to_builtins(work), self._size)

    def _probes(self, giant: Giant, number: int) -> list[Task]:
        retained, tasks = self._retained.get(giant.first + number), list[Task]()
        for later in range(number + 1, giant.blocks if retained else 0):
            bucket = giant.first + later
            key = f"{bucket:05d}-{number:05d}"
            work = ProbeWork(
                bucket, giant.first + number, f"answers-{later}", key, retained.retained if retained else []
            )
            tasks.append(Task(key, "datakit.dedup.giants.probe:probe", msgspec.to_builtins(work), 2 * self._size))
        return tasks

    def _judged(self, giant: Giant) -> Judged:
        settled = [self._retained[giant.first + number] for number in range(giant.blocks)]
        size, removed = sum(one.documents for one in settled), sum(one.removed for one in settled)
        name = f"{giant.high:016x}{giant.low:016x}"
        return Judged([], {str(1 << (size.bit_length() - 1)): 1}, [(size, size - removed, name)])
