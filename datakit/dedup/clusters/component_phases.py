"""Plans the phases that find the components of the buckets' forests and label all clustered documents, with a limit on
the memory of each task (`dedup.task_memory`).

If all nodes fit into the table of one task, there is one phase with one task:

    labels       the forests are joined

Otherwise, there are rounds, each of which retires many nodes (see `stars.py`), until the remaining nodes fit into one
task:

    links        the forests' edges are routed by node
    large-1      the first round: large-star, then
    small-1      small-star; large-2, small-2, ... follow
    components   the remaining edges are joined                                            (only if there are any)
    resolve-2    the nodes that round 2 retired get their labels; rounds are resolved from the last to the first
    labels       the nodes that round 1 retired get their labels

The number of rounds depends on the edges and on the memory of a task, but the labels depend only on the edges. Files
that no later phase reads are dropped, so the disk holds the edges of about two phases, and 16 bytes for each retired
node.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from datakit.dedup.clusters.pairs import FIXED_BYTES, NODE_BYTES, PAIR_BYTES, PIECE_ROWS
from datakit.dedup.minhash.signatures_stage import PRELOADS
from datakit.dedup.phase_data import BucketRange, ForestFiles, Forests, Reduced, Round, details_of
from datakit.engine.exchange.exchange import both, merged, run_sizes
from datakit.engine.exchange.row_buckets import RowBuckets, power_of_two
from datakit.engine.task import Phase, Preload, Step, Task, TaskResult

TASK_BYTES = 64 << 20  # bytes of pairs per task, unless its memory allows only fewer
MOST_NODES = 1 << 25  # nodes of one task, whatever its memory, because more would take too long
EDGE_BYTES = 2 * PAIR_BYTES  # an edge is routed in both directions
UNEVEN = 1.05  # nodes in the fullest bucket, relative to the average, if the average is large

TABLES = "datakit.dedup.clusters.node_tables"
TABLE_PRELOADS = (*PRELOADS, Preload(TABLES, f"{TABLES}:warm", kernels=True))

Results = Sequence[TaskResult]
Phases = Generator[Phase, Results, Results]
Sizes = dict[str, int]  # the runs of an exchange: path -> size in bytes


def nodes_per_task(memory: int) -> int:
    """Return how many distinct nodes fit into a task with this much memory, in bytes."""
    return max(1, min((memory - FIXED_BYTES) // NODE_BYTES, MOST_NODES))


def label_phases(step: Step, connected: Results, rows: RowBuckets, memory: int, giant: int) -> Phases:
    """Yield all phases, and return the results of the last one, whose details are of type `Labelled`. connected: the
    results of phase `buckets`. rows: the buckets to which labels are routed. memory: the memory of a task, in bytes.
    giant: the results report every component with more than this number of documents, and its size less at most half
    of this number, if there are at most 4,000 times as many documents.
    """
    found = details_of(connected, ForestFiles)
    forests = [(path, result.edges) for result in found for path in result.forests]
    edges = sum(result.edges for result in found)
    most, nodes = nodes_per_task(memory), min(2 * edges, rows.rows)
    if nodes <= most:
        shared = msgspec.to_builtins(Round(0, 1, memory, [], rows=rows, large=_reported(giant, 1)))
        tasks = (_forest_task("all", "labels:label", forests),)
        phase = _phase("labels", tasks, shared, FIXED_BYTES + NODE_BYTES * nodes, "forest")
        return (yield replace(phase, preloads=PRELOADS) if edges <= PIECE_ROWS else phase)  # one piece needs no table
    return (yield from _Rounds(step, rows, _Limits(memory, giant), nodes, edges).phases(forests))


def _reported(giant: int, tasks: int) -> int:
    """Return how many nodes of a component one of `tasks` tasks must have, at least, to report it."""
    return max(1, giant // (4 * tasks))


def _phase(name: str, tasks: tuple[Task, ...], shared: object, memory: int, *last_read: str) -> Phase:
    """Return a phase. last_read: the exchanges that it reads and no later phase does."""
    plain, drops = msgspec.to_builtins(shared), tuple(folder for one in last_read for folder in both(one))
    return Phase(name, tasks, plain, TABLE_PRELOADS, memory_bytes=memory, memory_per_input_byte=0.0, drops=drops)


def _forest_task(key: str, function: str, forests: Sequence[tuple[str, int]], buckets: int = 0) -> Task:
    arguments = msgspec.to_builtins(Forests(key, [path for path, _ in forests], buckets))
    size = PAIR_BYTES * sum(edges for _, edges in forests)
    return Task(key, f"datakit.dedup.clusters.{function}", arguments, size)


@dataclass(frozen=True)
class _Left:
    """The edges that remain at the start of a round. nodes: an upper bound on the number of their nodes."""

    runs: Sizes
    edges: int
    nodes: int


class _Limits(NamedTuple):
    """The memory of a task, in bytes, and the size of a giant component (see `label_phases`)."""

    memory: int
    giant: int


class _Exchange(NamedTuple):
    """An exchange that an earlier phase wrote: its name and its runs."""

    name: str
    runs: Sizes


class _Retired(NamedTuple):
    """The edges of the nodes that a round retired, and the number of tasks that the round had."""

    tasks: int
    runs: Sizes


class _Rounds:
    """Plans the phases of the rounds. buckets: the number of buckets of every exchange."""

    def __init__(self, step: Step, rows: RowBuckets, limits: _Limits, nodes: int, edges: int) -> None:
        self._step, self._rows, self._memory, self._giant = step, rows, *limits
        self._buckets, self._nodes, self._edges = 1 << 30, nodes, edges
        self._buckets = self._tasks_for(nodes, edges)

    def _tasks_for(self, nodes: int, edges: int) -> int:
        by_memory = UNEVEN * min(nodes, 2 * edges) / nodes_per_task(self._memory)
        return min(power_of_two(max(by_memory, EDGE_BYTES * edges / TASK_BYTES)), self._buckets)

    def phases(self, forests: Sequence[tuple[str, int]]) -> Phases:
        """Yield the phases; see the module's docstring."""
        left, rounds = (yield from self._links(forests)), list[_Retired]()
        while left.edges and min(left.nodes, 2 * left.edges) > nodes_per_task(self._memory):
            tasks = self._tasks_for(left.nodes, left.edges)
            left, retired = yield from self._round(len(rounds) + 1, tasks, left)
            rounds.append(_Retired(tasks, retired))
        labels = (yield from self._components(left, len(rounds) + 1)) if left.edges else Sizes()
        for number in range(len(rounds), 1, -1):
            labels = run_sizes((yield from self._resolve(number, rounds[number - 1], labels)))
        return (yield from self._resolve(1, rounds[0], labels))

    def _links(self, forests: Sequence[tuple[str, int]]) -> Generator[Phase, Results, _Left]:
        tasks, group, size = list[Task](), list[tuple[str, int]](), 0
        for number, forest in enumerate(forests):
            group.append(forest)
            size += PAIR_BYTES * forest[1]
            if size >= TASK_BYTES or number == len(forests) - 1:
                tasks.append(_forest_task(f"{self._memory}-{len(tasks):05d}", "rounds:link", group, self._buckets))
                group, size = [], 0
        results = yield _phase("links", tuple(tasks), {}, min(FIXED_BYTES, self._memory), "forest")
        return _Left(run_sizes(results), self._edges, self._nodes)

    def _round(self, number: int, tasks: int, left: _Left) -> Generator[Phase, Results, tuple[_Left, Sizes]]:
        before = _Exchange(f"small-{number - 1}" if number > 1 else "links", left.runs)
        spread = yield from self._star("large", number, tasks, before)
        reduced = yield from self._star("small", number, tasks, _Exchange(f"large-{number}", run_sizes(spread)))
        details = details_of(reduced, Reduced)
        sizes = {output.path: output.bytes for result in reduced for output in result.outputs}
        retired = {run: sizes[run] for one in details for run in one.retired}
        nodes = left.nodes - sum(one.nodes for one in details)
        return _Left(run_sizes(reduced), sum(one.edges for one in details), nodes), retired

    def _star(self, function: str, number: int, tasks: int, before: _Exchange) -> Phases:
        runs = yield from merged(self._step, *before, self._buckets, readers=tasks, times=2)
        work = self._ranges(f"rounds:{function}", tasks, sum(before.runs.values()))
        shared = Round(number, self._buckets, self._memory, runs)
        return (yield _phase(f"{function}-{number}", work, shared, self._memory, before.name))

    def _ranges(self, function: str, tasks: int, size: int) -> tuple[Task, ...]:
        step = self._buckets // tasks
        ranges = [BucketRange(first, first + step) for first in range(0, self._buckets, step)]
        name = f"datakit.dedup.clusters.{function}"
        return tuple(Task(f"{one.first:06d}", name, msgspec.to_builtins(one), size // tasks) for one in ranges)

    def _components(self, left: _Left, number: int) -> Generator[Phase, Results, Sizes]:
        """Label the nodes that remain after the last round, in one task. number: that of the last round plus 1."""
        before = f"small-{number - 1}"
        runs = yield from merged(self._step, before, left.runs, self._buckets, readers=1)
        task = Task("all", "datakit.dedup.clusters.rounds:finish", {}, sum(left.runs.values()))
        results = yield _phase(
            "components", (task,), Round(number, self._buckets, self._memory, runs), self._memory, before
        )
        return run_sizes(results)

    def _resolve(self, number: int, retired: _Retired, labels: Sizes) -> Phases:
        """Label the nodes that round `number` retired, from the labels of the nodes that remained after it."""
        name, function = (f"resolve-{number}", "labels:resolve") if number > 1 else ("labels", "labels:label_parts")
        before = (f"retired-{number}", f"labels-{number + 1}")
        runs = yield from merged(self._step, before[0], retired.runs, self._buckets, readers=retired.tasks)
        known = yield from merged(self._step, before[1], labels, self._buckets, readers=retired.tasks)
        large = _reported(self._giant, retired.tasks)
        shared = Round(number, self._buckets, self._memory, runs, known, self._rows, large)
        work = self._ranges(function, retired.tasks, sum(retired.runs.values()) + sum(labels.values()))
        return (yield _phase(name, work, shared, self._memory, *before))
