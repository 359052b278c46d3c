"""What a phase has learned from its finished tasks: how much memory the next one needs, how many fit in one child.

Neither changes a byte of any output. Memory: the phase declares what an attempt may need; from the twentieth finished
task on, a first attempt gets one and a half times the 95th percentile of what was really used of it, between a quarter
and four times of what was declared; a second attempt always starts from the declaration. Batches: a child costs some
5 ms, so tasks whose median is under 50 ms are given out many at a time, half a second of work each, as long as enough
batches are left to keep every slot busy to the end.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from datakit.engine.executor import Outcome
from datakit.engine.task import Phase, Task

LEARN_FROM = 20  # finished tasks
REMEMBERED = 500
REFRESH = 25  # finished tasks between two looks
MARGIN, LEAST, MOST = 1.5, 0.25, 4.0
SMALLEST_BUDGET = 64 << 20
TINY_SECONDS, BATCH_SECONDS, BATCH_TASKS = 0.05, 0.5, 256
BATCHES_A_SLOT = 4
SOONEST_BATCH = 8  # finished tasks


class Budgets:
    """Of one phase."""

    def __init__(self, phase: Phase) -> None:
        self._phase = phase
        self._shares: deque[float] = deque(maxlen=REMEMBERED)
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        self._factor, self._median, self._entered = 1.0, 0.0, 0

    def declared(self, task: Task) -> int:
        """What the phase says that a task needs."""
        return int(self._phase.memory_bytes + self._phase.memory_per_input_byte * task.input_bytes)

    def first(self, task: Task) -> int:
        """What a first attempt at a task gets."""
        declared = self.declared(task)
        return max(min(declared, SMALLEST_BUDGET), int(declared * self._factor))

    def batch(self, waiting: int, slots: int) -> int:
        """How many of the waiting tasks the next child gets."""
        if not self._phase.batches or not 0.0 < self._median < TINY_SECONDS:
            return 1
        return max(1, min(int(BATCH_SECONDS / self._median), waiting // (BATCHES_A_SLOT * slots), BATCH_TASKS))

    def enter(self, task: Task, outcome: Outcome) -> None:
        """A task is done."""
        self._shares.append(outcome.peak_memory / max(1, self.declared(task)))
        self._seconds.append(max(outcome.work_seconds, 1e-6))
        self._entered += 1
        if self._entered == SOONEST_BATCH or self._entered % REFRESH == 0:
            self._median = median(self._seconds)
        if self._entered >= LEARN_FROM and (self._entered == LEARN_FROM or self._entered % REFRESH == 0):
            ordered = sorted(self._shares)
            self._factor = min(max(MARGIN * ordered[int(0.95 * len(ordered))], LEAST), MOST)
