"""Decides, from a phase's finished tasks, how much memory first attempts get and how many tiny tasks share one child.

Neither decision changes the output.
Memory: the phase declares how much memory an attempt may need. Once twenty tasks have finished, a first attempt gets
the declared memory times a factor. Each finished task used a certain share of its declared memory; the factor is 1.5
times the 95th percentile of these shares, but at least 0.25 and at most 4. A retry always starts from the declared
memory.
Batches: starting a child takes about 5 ms, so tasks with a median duration below 50 ms are handed out in batches of
half a second of work, as long as enough batches remain to keep every slot busy to the end.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from datakit.engine.executor import Outcome
from datakit.engine.task import Phase, Task

LEARN_FROM = 20  # number of finished tasks: the minimum for a meaningful 95th percentile
REMEMBERED = 500  # only this many of the latest finished tasks count, so that estimates follow changes in the input
REFRESH = 25  # number of finished tasks between two estimates
# The factor is MARGIN times the 95th percentile, but at least LEAST and at most MOST. Chosen, not measured: low values
# cause retries, high ones leave slots idle.
MARGIN, LEAST, MOST = 1.5, 0.25, 4.0
# In bytes: the factor reduces no budget below this, because libraries allocate some memory regardless of the input.
# Chosen, not measured.
SMALLEST_BUDGET = 64 << 20
# Starting a child takes 5 ms, which is 10 % of 50 ms (the limit for a tiny task) and 1 % of a batch.
TINY_SECONDS, BATCH_SECONDS, BATCH_TASKS = 0.05, 0.5, 256
BATCHES_PER_SLOT = 4  # at least this many batches per slot must remain, so that all slots are busy to the end
FIRST_BATCH_AFTER = 8  # number of finished tasks before the first batch


class TaskEstimates:
    """Estimates the memory and the batch size for the next tasks of one phase."""

    def __init__(self, phase: Phase) -> None:
        self._phase = phase
        self._shares: deque[float] = deque(maxlen=REMEMBERED)
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        self._factor, self._median, self._finished = 1.0, 0.0, 0

    def declared(self, task: Task) -> int:
        """Return the memory that the phase declares for a task, in bytes."""
        held = task.input_bytes if task.held_bytes is None else task.held_bytes
        return int(self._phase.memory_bytes + self._phase.memory_per_input_byte * held)

    def first(self, task: Task) -> int:
        """Return the memory budget of a first attempt at a task, in bytes."""
        declared = self.declared(task)
        return max(min(declared, SMALLEST_BUDGET), int(declared * self._factor))

    def batch(self, waiting: int, slots: int) -> int:
        """Return how many tasks the next child gets, given the number of waiting tasks and the number of slots."""
        if not self._phase.batches or not 0.0 < self._median < TINY_SECONDS:
            return 1
        return max(1, min(int(BATCH_SECONDS / self._median), waiting // (BATCHES_PER_SLOT * slots), BATCH_TASKS))

    def learn(self, task: Task, outcome: Outcome) -> None:
        """Include a finished task in the estimates."""
        self._shares.append(outcome.peak_memory / max(1, self.declared(task)))
        self._seconds.append(max(outcome.work_seconds, 1e-6))
        self._finished += 1
        if self._finished == FIRST_BATCH_AFTER or self._finished % REFRESH == 0:
            self._median = median(self._seconds)
        if self._finished >= LEARN_FROM and (self._finished == LEARN_FROM or self._finished % REFRESH == 0):
            ordered = sorted(self._shares)
            self._factor = min(max(MARGIN * ordered[int(0.95 * len(ordered))], LEAST), MOST)
