"""Provides an executor without processes, which advances a virtual clock to the end of the next attempt.

All nodes of the cluster are equal. An attempt needs its cores and its memory on one node; the node with the most free
memory is chosen. Attempts start in the order in which they were submitted, as on a real cluster. An attempt that
declares more memory than a node has gets a whole node. The real run loop drives this executor. It does not read the
virtual clock; only the order of the outcomes depends on the virtual time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from datakit.engine.executor import Attempt, BatchedResult, Cause, Outcome
from datakit.engine.scheduler.run_loop import WAIT_SECONDS
from datakit.engine.task import Preload, Task
from datakit.engine.worker.memory import MEMORY_SHARE
from datakit.errors import UsageError
from datakit.pipeline.simulate.effects import Effect
from datakit.pipeline.simulate.rates import ATTEMPT_SECONDS, REQUEST_SECONDS, cpu_seconds, peak_memory
from datakit.storage.urls import PARALLEL_REQUESTS

TICK_SECONDS = 0.05  # outcomes within this virtual time are returned together


@dataclass(frozen=True)
class Cluster:
    """The machines of a simulation. memory: bytes per core. bandwidth: bytes per second of each node, in each
    direction. latency: seconds per request; a task sends several requests at a time. request_seconds: CPU-seconds per
    request. Both are 0 for a disk.
    """

    nodes: int = 1
    cores: int = 1
    memory: int = 4 << 30
    bandwidth: float = 3e9
    latency: float = 0.03
    request_seconds: float = REQUEST_SECONDS

    def __post_init__(self) -> None:
        if min(self.nodes, self.cores, self.memory) < 1:
            raise UsageError("the numbers of nodes and cores and the memory per core must be at least 1")

    @property
    def slots(self) -> int:
        """The number of attempts that can run at a time."""
        return self.nodes * self.cores


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of one task: CPU-seconds, seconds in its slot, and its effect."""

    task: Task
    cpu_seconds: float
    seconds: float
    effect: Effect


@dataclass(slots=True)
class _Node:
    cores: int
    memory: int


# returns the effect of a task and the size of its phase's shared data
Simulate = Callable[[Attempt, Task], tuple[Effect, int]]
Notice = Callable[[Attempt, Spent], None]


class VirtualExecutor:
    """Implements `Executor`. now: the virtual time in seconds. busy: the slot-seconds during which slots were occupied.

    overcommitted: the number of attempts that declared more memory than a node has.
    """

    def __init__(self, cluster: Cluster, simulate: Simulate, notice: Notice) -> None:
        self._cluster, self._simulate, self._notice = cluster, simulate, notice
        self._node_memory = int(cluster.cores * cluster.memory * MEMORY_SHARE)
        self._nodes = [_Node(cluster.cores, self._node_memory) for _ in range(cluster.nodes)]
        self._free = [(-self._node_memory, number) for number in range(cluster.nodes)]  # a heap; may hold outdated ones
        self._waiting: deque[Attempt] = deque()
        self._running: list[tuple[float, int, int, int, Outcome, Attempt]] = []
        self._number = 0
        self.now, self.busy, self.overcommitted = 0.0, 0.0, 0

    @property
    def slots(self) -> int:
        return self._cluster.slots

    @property
    def compiling(self) -> bool:
        return False

    def written(self, step_directory: str) -> int:
        return 0

    def prepare(self, preloads: tuple[Preload, ...]) -> None:
        """Do nothing: the start of servers is not simulated."""

    def submit(self, attempt: Attempt) -> None:
        self._waiting.append(attempt)
        self._start_what_fits()

    def wait(self, timeout: float) -> list[Outcome]:
        """Advance the clock to the end of the next attempt, and return the outcomes until then. If the timeout is
        short, because a step is about to advance, the clock does not move.
        """
        if not self._running or timeout < WAIT_SECONDS:
            return []
        until, found = self._running[0][0] + TICK_SECONDS, list[Outcome]()
        while self._running and self._running[0][0] <= until:
            self.now, _, number, memory, outcome, attempt = heapq.heappop(self._running)
            node = self._nodes[number]
            node.cores, node.memory = node.cores + attempt.cpus, node.memory + memory
            heapq.heappush(self._free, (-node.memory, number))
            self._start_what_fits()
            found.append(outcome)
        return found

    def cancel(self, *step_directories: str) -> None:
        self._waiting = deque(one for one in self._waiting if one.step_directory not in step_directories)

    def close(self) -> None:
        self._waiting.clear()
        self._running.clear()

    def _start_what_fits(self) -> None:
        while self._waiting:
            attempt = self._waiting[0]
            memory = min(attempt.memory_bytes, self._node_memory)
            number = self._node_for(attempt.cpus, memory)
            if number is None:
                return
            self._waiting.popleft()
            self.overcommitted += attempt.memory_bytes > self._node_memory
            node = self._nodes[number]
            node.cores, node.memory = node.cores - attempt.cpus, node.memory - memory
            if node.cores:
                heapq.heappush(self._free, (-node.memory, number))
            outcome = self._run(attempt, number)
            self._number += 1
            self.busy += outcome.seconds * attempt.cpus
            heapq.heappush(self._running, (self.now + outcome.seconds, self._number, number, memory, outcome, attempt))

    def _node_for(self, cpus: int, memory: int) -> int | None:
        """Return the node with the most free memory that has the cores; None if no node has room."""
        aside, found = list[tuple[int, int]](), None
        while self._free:
            free, number = self._free[0]
            node = self._nodes[number]
            if node.memory != -free or not node.cores:  # an outdated entry
                heapq.heappop(self._free)
                continue
            if -free < memory:
                break
            aside.append(heapq.heappop(self._free))
            if node.cores >= cpus:
                found = number
                aside.pop()
                break
        for entry in aside:
            heapq.heappush(self._free, entry)
        return found

    def _run(self, attempt: Attempt, node: int) -> Outcome:
        spent = [self._spent(attempt, task) for task in (attempt.task, *attempt.more)]
        for one in spent:
            self._notice(attempt, one)
        more = tuple(BatchedResult(one.task.key, one.effect.result, one.seconds) for one in spent[1:])
        peak = max(_peak(one.task) for one in spent)
        return Outcome.of(
            attempt, Cause.DONE, result=spent[0].effect.result, more=more, peak_memory=peak,
            budget=attempt.memory_bytes,
            seconds=ATTEMPT_SECONDS + sum(one.seconds for one in spent), work_seconds=spent[0].seconds,
            cpu_seconds=ATTEMPT_SECONDS + sum(one.cpu_seconds for one in spent), node=f"node-{node}",
            written=sum(one.effect.written for one in spent),
        )  # fmt: skip

    def _spent(self, attempt: Attempt, task: Task) -> Spent:
        effect, shared = self._simulate(attempt, task)
        work = task.input_bytes if effect.work is None else effect.work
        cpu = cpu_seconds(task.function, work, shared) + self._cluster.request_seconds * (effect.reads + effect.writes)
        waits = self._cluster.latency * (effect.reads / PARALLEL_REQUESTS + effect.writes)
        moved = max(effect.read, effect.written) / (self._cluster.bandwidth / self._cluster.cores)
        return Spent(task, cpu, max(cpu, moved) + waits, effect)


def _peak(task: Task) -> int:
    return peak_memory(task.function, task.input_bytes if task.held_bytes is None else task.held_bytes)
