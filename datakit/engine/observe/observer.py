"""Defines which events of a run the driver reports to its observers (progress display, metrics, `events.jsonl`).

Observers make no decisions and never see a record. `ObserverGroup` passes every event to several observers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from datakit.engine.executor import Outcome, Verdict
from datakit.engine.task import Phase, Step
from datakit.storage.manifest import Manifest


class Observer:
    """Receives the events of a run, in order, and ignores them; subclasses override the methods that they need."""

    def note(self, text: str) -> None:
        """There is a message for the user: `text`, which is one sentence."""

    def step_started(self, step: Step) -> None:
        """A step has started."""

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        """A phase has started; `done` of its tasks were already finished by earlier runs."""

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        """An attempt has ended; `verdict` is the driver's decision about it."""

    def kernels_compiling(self, compiling: bool) -> None:
        """Tasks have begun (`compiling` is True) or ceased (False) to wait for kernels to be compiled."""

    def disk_written(self, running: int) -> None:
        """The attempts that are running now have written `running` bytes so far. Called before each tick."""

    def tick(self) -> None:
        """Called every half second, or more often, while tasks run."""

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        """A step is done; `reused` is True if it was already done before this run."""

    def step_failed(self, step: Step, error: BaseException) -> None:
        """A step has ended without a manifest."""


EVENTS = (
    "note", "step_started", "phase_started", "attempt_ended", "kernels_compiling", "disk_written", "tick", "step_ended",
    "step_failed",
)  # fmt: skip


class PeakMemory(Observer):
    """Remembers the peak memory and budget, in bytes, of the attempt that came closest to its budget."""

    def __init__(self) -> None:
        self.peak: int = 0
        self.budget: int = 0

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        if outcome.budget and outcome.peak_memory * self.budget >= self.peak * outcome.budget:
            self.peak, self.budget = outcome.peak_memory, outcome.budget


class ObserverGroup(Observer):
    """Passes every event to each of several observers, in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        for event in EVENTS:
            setattr(self, event, partial(_call_all, [getattr(observer, event) for observer in observers]))


def _call_all(methods: Sequence[Callable[..., None]], *facts: object) -> None:
    for method in methods:
        method(*facts)
