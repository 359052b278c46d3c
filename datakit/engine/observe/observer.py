"""Defines the events of a run that the driver reports to observers: progress displays, metrics and `events.jsonl`.

Observers decide nothing and never see a record. `ObserverGroup` passes every event to several of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from datakit.engine.executor import Outcome, Verdict
from datakit.engine.task import Phase, Step
from datakit.storage.manifest import Manifest


class Observer(Protocol):
    """Receives the events of a run, in order."""

    def step_started(self, step: Step) -> None:
        """A step starts."""
        ...

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        """A phase starts; `done` of its tasks were finished by an earlier run."""
        ...

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        """An attempt ended; `verdict` says what follows."""
        ...

    def tick(self) -> None:
        """Called at least twice a second while tasks run."""
        ...

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        """A step is done; `reused` if an earlier run finished it."""
        ...

    def step_failed(self, step: Step, error: BaseException) -> None:
        """A step ended without a manifest."""
        ...


class SilentObserver:
    """Ignores every event. Base class of observers that need only a few."""

    def step_started(self, step: Step) -> None:
        """Do nothing."""

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        """Do nothing."""

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        """Do nothing."""

    def tick(self) -> None:
        """Do nothing."""

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        """Do nothing."""

    def step_failed(self, step: Step, error: BaseException) -> None:
        """Do nothing."""


class PeakMemory(SilentObserver):
    """Remembers peak and budget, in bytes, of the attempt that came closest to its budget."""

    def __init__(self) -> None:
        self.peak = self.budget = 0

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        """Compare the attempt with the closest one so far."""
        if outcome.budget and outcome.peak_memory * self.budget >= self.peak * outcome.budget:
            self.peak, self.budget = outcome.peak_memory, outcome.budget


class ObserverGroup:
    """Passes every event to each of several observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def step_started(self, step: Step) -> None:
        """Pass to all."""
        for observer in self._observers:
            observer.step_started(step)

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        """Pass to all."""
        for observer in self._observers:
            observer.phase_started(step, phase, done, slots)

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        """Pass to all."""
        for observer in self._observers:
            observer.attempt_ended(outcome, verdict)

    def tick(self) -> None:
        """Pass to all."""
        for observer in self._observers:
            observer.tick()

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        """Pass to all."""
        for observer in self._observers:
            observer.step_ended(step, manifest, reused)

    def step_failed(self, step: Step, error: BaseException) -> None:
        """Pass to all."""
        for observer in self._observers:
            observer.step_failed(step, error)
