"""Defines which events of a run the driver reports to its observers (progress display, metrics, `events.jsonl`).

Observers make no decisions and never see a record. `ObserverGroup` passes every event to several observers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from datakit.engine.executor import Outcome, Verdict
from datakit.engine.task import Phase, Step
from datakit.storage.manifest import Manifest


@dataclass(frozen=True)
class RunStart:
    """The start of a run.

    run: the run's id. log: the URL of its `events.jsonl`. recipe: the recipe's file or name. definition: the recipe's
    document, with the settings of `--set`. sources: the directory of each source's files ("" for a remote source).
    options: the other arguments of the command. A run that packs a mixture has no recipe, definition or sources.
    """

    run: str
    log: str
    dataset: str
    root: str
    recipe: str = ""
    definition: Mapping[str, Any] | None = None
    sources: Mapping[str, str] | None = None
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class RunEnding:
    """The end of a run: the exit code of its command, the reason ("done", "interrupted", "terminated", "timed out", or
    the whole message of the error), the error's class ("" if there is none), and the seconds that the run took.
    """

    exit_code: int
    reason: str
    error: str
    seconds: float


class Observer:
    """Receives the events of a run, in order, and ignores them; subclasses override the methods that they need. The
    events of steps that run at the same time are interleaved; `Outcome.step_directory` tells to which step an attempt
    belongs.
    """

    def run_started(self, start: RunStart) -> None:
        """A run has begun: it has reached the first step that is not yet done, has lasted 30 s, or has failed. Before
        that, only finished steps are reported. This method may be called from a different thread than the others.
        """

    def run_ended(self, ending: RunEnding) -> None:
        """The run has ended; called only after `run_started`. No event follows."""

    def note(self, text: str) -> None:
        """The run has a message for the user: `text`, a single sentence."""

    def step_started(self, step: Step) -> None:
        """A step has started."""

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        """A phase has started; `done` of its tasks were already finished by earlier runs."""

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        """An attempt has ended; `verdict` is the driver's decision about it."""

    def kernels_compiling(self, compiling: bool) -> None:
        """Tasks have begun to wait for kernels to be compiled (`compiling` is True), or no longer wait (False)."""

    def disk_written(self, step: Step, running: int) -> None:
        """`running` is the number of bytes that the step's running attempts have written so far. Called before each
        tick.
        """

    def tick(self) -> None:
        """Called every half second, or more often, while tasks run."""

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        """A step is done; `reused` is True if it was already done before this run."""

    def step_failed(self, step: Step, error: BaseException) -> None:
        """A step has ended without a manifest."""


EVENTS = (
    "run_started", "note", "step_started", "phase_started", "attempt_ended", "kernels_compiling", "disk_written",
    "tick", "step_ended", "step_failed", "run_ended",
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
