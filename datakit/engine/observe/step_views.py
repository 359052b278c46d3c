"""Derives the displayed state of each step of a run (tasks, rates, time left, memory) from the run's events.

The rate in MB/s and the remaining time are based on bytes of input, and exclude the time spent compiling kernels. The
number of bytes that tasks have written is known while they run; it reveals progress, or a disk that is filling up, even
before the first task is done.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from datakit.engine.executor import Outcome, Verdict
from datakit.engine.observe.observer import Observer
from datakit.engine.task import Phase, Step
from datakit.errors import PartialError
from datakit.storage.manifest import Manifest


@dataclass
class StepView:
    """The displayed state of one step. `bytes_done` and `records` cover only this run's attempts, and `bytes_done`
    starts at 0 in each phase. At the end of the step, `records` is set to the step's number of rows. `written_ended`
    is the number of bytes written to files by attempts that have ended, and `written_running` the number written by
    those still running; `written_before` is the sum of both at the start of the phase.
    """

    name: str
    phase: str = ""
    total: int = 0
    done: int = 0
    failed: int = 0
    running: int = 0
    quarantined: int = 0
    records: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    peak_memory: int = 0
    budget: int = 0
    written_ended: int = 0
    written_running: int = 0
    written_before: int = 0
    slots: int = 0
    reused: bool = False
    compiling: bool = False
    copies: bool = False
    error: str = ""
    started: float = field(default_factory=time.monotonic)
    phase_started: float = field(default_factory=time.monotonic)
    ended: float | None = None

    def seconds(self) -> float:
        """Return the step's duration so far, in seconds."""
        return (self.ended or time.monotonic()) - self.started

    def written(self) -> int:
        """Return how many bytes the step's attempts have written to files in this run."""
        return self.written_ended + self.written_running

    def write_rate(self) -> float:
        """Return the average number of bytes written per second in this phase."""
        return max(0, self.written() - self.written_before) / max(time.monotonic() - self.phase_started, 1e-9)

    def bytes_now(self) -> int:
        """Return how many bytes of the phase's input have been dealt with: those of the tasks that have ended or, if
        the tasks write what they read, what all tasks have written.
        """
        written = max(0, self.written() - self.written_before) if self.copies else 0
        return max(self.bytes_done, min(written, self.bytes_total))

    def left(self) -> float | None:
        """Estimate, from the bytes done, the seconds left in the phase; return None if no estimate is possible."""
        passed, done = time.monotonic() - self.phase_started, self.bytes_now()
        if self.ended is not None or not done or not self.bytes_total:
            return None
        return passed * max(0, self.bytes_total - done) / done

    def state(self) -> str:
        """Return the state to display: running, compiling, done, reused, partial, failed or interrupted."""
        if self.error:
            return self.error
        if self.reused:
            return "reused"
        if self.compiling:
            return "compiling"
        return "done" if self.ended is not None else "running"


class StepViews(Observer):
    """Keeps the state of every step of a run, by the step's directory. Subclasses display it."""

    def __init__(self) -> None:
        self.views: dict[str, StepView] = {}
        self._sizes: dict[str, dict[str, int]] = {}  # input bytes of the tasks of each running phase

    def running(self) -> list[StepView]:
        """Return the running steps, in the order in which they started."""
        return [view for view in self.views.values() if view.ended is None]

    def _view(self, step: Step) -> StepView:
        return self.views.setdefault(step.directory, StepView(f"{step.stage} {step.dataset}"))

    def step_started(self, step: Step) -> None:
        self._view(step)

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        view = self._view(step)
        view.phase, view.total, view.done, view.slots = phase.name, len(phase.tasks), done, slots
        view.copies = phase.copies
        view.bytes_total, view.bytes_done = sum(task.input_bytes for task in phase.tasks), 0
        view.phase_started, view.written_before = time.monotonic(), view.written()
        self._sizes[step.directory] = {task.key: task.input_bytes for task in phase.tasks}

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        view = self.views.get(outcome.step_directory)
        if view is None:
            return
        view.done += verdict is Verdict.DONE
        view.written_ended += outcome.written
        view.failed += verdict in (Verdict.FAIL, Verdict.REFUSE)
        if outcome.budget and outcome.peak_memory * view.budget >= view.peak_memory * outcome.budget:
            view.peak_memory, view.budget = outcome.peak_memory, outcome.budget  # the attempt closest to its budget
        if verdict in (Verdict.DONE, Verdict.FAIL, Verdict.REFUSE):
            view.bytes_done += self._sizes.get(outcome.step_directory, {}).get(outcome.key, 0)
        if outcome.result is not None:
            view.records += outcome.result.records
            view.quarantined += sum(record.records for record in outcome.result.quarantined)

    def kernels_compiling(self, compiling: bool) -> None:
        for view in self.running():
            view.compiling, view.phase_started = compiling, time.monotonic()  # MB/s and time left exclude compiling

    def disk_written(self, step: Step, running: int) -> None:
        self._view(step).written_running = running

    def tick(self) -> None:
        """Estimate how many tasks of each step are running: steps get slots in the order in which they started, each at
        most one per unfinished task.
        """
        free = max((view.slots for view in self.running()), default=0)
        for view in self.running():
            view.running = min(free, view.total - view.done - view.failed)
            free -= view.running

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        view = self._view(step)
        view.ended, view.reused, view.running, view.compiling = time.monotonic(), reused, 0, False
        view.written_running = 0
        view.records = manifest.totals.rows
        self._sizes.pop(step.directory, None)

    def step_failed(self, step: Step, error: BaseException) -> None:
        view = self._view(step)
        view.ended, view.running, view.compiling, view.written_running = time.monotonic(), 0, False, 0
        stopped = "failed" if isinstance(error, Exception) else "interrupted"
        view.error = "partial" if isinstance(error, PartialError) else stopped
        self._sizes.pop(step.directory, None)
