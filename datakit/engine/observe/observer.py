"""The events of a run, as the driver reports them: to a table on the terminal, lines in a log, or `events.jsonl`.

An observer never decides anything and never sees a record. `ObserverGroup` passes every event to several of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from datakit.engine.executor import Outcome, Verdict
from datakit.engine.task import Phase, Step
from datakit.storage.manifest import Manifest


class Observer(Protocol):
    """The events of a run, in order."""

    def step_started(self, step: Step) -> None:
        """A step must be run."""
        ...

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        """A phase begins; `done` of its tasks were done by an earlier run."""
        ...

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        """An attempt ended, and what follows."""
        ...

    def tick(self) -> None:
        """Some time passed; at least twice a second while tasks run."""
        ...

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        """A step is done; `reused` where it was done before."""
        ...

    def step_failed(self, step: Step, error: BaseException) -> None:
        """A step ended without a manifest."""
        ...


class SilentObserver:
    """Ignores every event; the base of observers that need only a few."""

    def step_started(self, step: Step) -> None:
        """Nothing."""

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        """Nothing."""

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        """Nothing."""

    def tick(self) -> None:
        """Nothing."""

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        """Nothing."""

    def step_failed(self, step: Step, error: BaseException) -> None:
        """Nothing."""


class PeakMemory(SilentObserver):
    """Remembers, of the attempt that came nearest to its budget, the peak and the budget, in bytes."""

    def __init__(self) -> None:
        self.peak = self.budget = 0

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        """Compares."""
        if outcome.budget and outcome.peak_memory * self.budget >= self.peak * outcome.budget:
            self.peak, self.budget = outcome.peak_memory, outcome.budget


class ObserverGroup:
    """Passes every event to each of several observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def step_started(self, step: Step) -> None:
        """To all."""
        for observer in self._observers:
            observer.step_started(step)

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        """To all."""
        for observer in self._observers:
            observer.phase_started(step, phase, done, slots)

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        """To all."""
        for observer in self._observers:
            observer.attempt_ended(outcome, verdict)

    def tick(self) -> None:
        """To all."""
        for observer in self._observers:
            observer.tick()

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        """To all."""
        for observer in self._observers:
            observer.step_ended(step, manifest, reused)

    def step_failed(self, step: Step, error: BaseException) -> None:
        """To all."""
        for observer in self._observers:
            observer.step_failed(step, error)
