"""Derives what the page of a run shows from the run's events: steps, phases, failed attempts, memory and activity.

The state is bounded, however long the log is: at most MOST_STEPS steps, the last MOST_FAILURES failed attempts and
MOST_NOTES notes, texts of at most MOST_TEXT characters. A field that is missing or of the wrong type counts as absent,
because a log may come from another version or from a stranger.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from datakit.engine.executor import Cause, Verdict
from datakit.engine.observe.event_tail import Event
from datakit.errors import PartialError
from datakit.serve.activity import Activity

MOST_STEPS = 10_000
MOST_PHASES = 50  # of one step
MOST_FAILURES = 500
MOST_NOTES = 50
MOST_TEXT = 4_000
STOPPED = (KeyboardInterrupt.__name__, SystemExit.__name__)


@dataclass
class PhaseState:
    """A phase of a step. done: includes the tasks that earlier runs have finished. retried: attempts that failed and
    were, or will be, followed by another.
    """

    name: str
    tasks: int = 0
    done: int = 0
    failed: int = 0
    retried: int = 0


@dataclass
class StepState:
    """A step. state: "running", "done", "reused", "failed", "partial" or "interrupted". Times are by the clock of the
    driver's machine, in seconds since 1970.
    """

    stage: str
    source: str
    state: str = "running"
    began: float = 0.0
    last: float = 0.0
    rows: int | None = None
    reason: str = ""
    phases: dict[str, PhaseState] = field(default_factory=dict)

    @property
    def phase(self) -> PhaseState | None:
        """The current or last phase."""
        return next(reversed(self.phases.values()), None)

    @property
    def seconds(self) -> float:
        """The time from the step's first to its newest event."""
        return max(0.0, self.last - self.began)


@dataclass(frozen=True)
class Failure:
    """A failed attempt."""

    time: float
    stage: str
    source: str
    phase: str
    task: str
    attempt: int
    cause: str
    verdict: str
    message: str
    peak_memory: int
    budget: int


@dataclass
class Memory:
    """The memory of a stage's attempts. peak, budget: of the attempt that came closest to its budget."""

    peak: int = 0
    budget: int = 0
    largest: int = 0

    @property
    def share(self) -> float:
        """The largest share of its budget that any attempt used."""
        return self.peak / self.budget if self.budget else 0.0


@dataclass
class RunState:
    """The state of a run. started, ended: its first and last event. last: the time of the newest event. slots: how many
    tasks could run at a time in the newest phase; 0 if the log does not say. version: the number of events so far.
    """

    started: Event | None = None
    ended: Event | None = None
    last: float | None = None
    slots: int = 0
    attempts: int = 0
    version: int = 0
    steps: dict[tuple[str, str], StepState] = field(default_factory=dict)
    failures: deque[Failure] = field(default_factory=lambda: deque(maxlen=MOST_FAILURES))
    causes: Counter[tuple[str, str]] = field(default_factory=Counter)
    memory: dict[str, Memory] = field(default_factory=dict)
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_NOTES))
    activity: Activity | None = None
    _latest: StepState | None = None

    @property
    def current(self) -> StepState | None:
        """The running step that most recently started or entered a phase. If that step has ended, the running step with
        the newest event; if no step is running, the step that started last.
        """
        if self._latest is None or self._latest.state == "running":
            return self._latest
        running = [step for step in self.steps.values() if step.state == "running"]
        return max(running, key=lambda step: step.last, default=self._latest)

    def apply(self, event: Event) -> None:
        """Take an event into account."""
        self.version += 1
        moment = _number(event, "time")
        self.last = moment if self.last is None else max(self.last, moment)
        self.activity = self.activity or Activity(moment)
        match event["event"]:
            case "run_started":
                self.started = event
            case "run_ended":
                self.ended = event
            case "note":
                self.notes.append(_text(event, "text"))
            case "step_started":
                self._latest = self._step(event, moment)
            case "phase_started" | "heartbeat" if _text(event, "phase"):
                self._phase(event, moment)
            case "attempt_ended":
                self._attempt(event, moment)
            case "step_ended" | "step_failed":
                self._end(event, moment)

    def _step(self, event: Event, moment: float) -> StepState | None:
        key = (_text(event, "stage"), _text(event, "dataset"))
        if key not in self.steps:
            if len(self.steps) >= MOST_STEPS:
                return None
            self.steps[key] = StepState(*key, began=moment)
        step = self.steps[key]
        step.last = max(step.last, moment)
        return step

    def _phase(self, event: Event, moment: float) -> None:
        self._latest = step = self._step(event, moment)
        if step is None or len(step.phases) >= MOST_PHASES:
            return
        phase = step.phases.setdefault(name := _text(event, "phase"), PhaseState(name))
        phase.tasks, phase.done = _count(event, "tasks"), _count(event, "done")
        phase.failed = _count(event, "failed")
        self.slots = _count(event, "slots") or self.slots

    def _attempt(self, event: Event, moment: float) -> None:
        self.attempts += 1
        step, cause, verdict = self._step(event, moment), _text(event, "cause"), _text(event, "verdict")
        phase = step.phases.get(_text(event, "phase")) if step else None
        if phase is not None:
            phase.done += verdict == Verdict.DONE
            phase.failed += verdict in (Verdict.FAIL, Verdict.REFUSE)
            phase.retried += verdict in (Verdict.RETRY, Verdict.PROPOSE)
        if step is not None:
            self._remember(event, step.stage)
        if self.activity is not None:
            self.activity.add(moment, _number(event, "seconds"))
        if verdict != Verdict.DONE or cause != Cause.DONE:
            self._fail(event, moment, cause, verdict)

    def _remember(self, event: Event, stage: str) -> None:
        memory = self.memory.setdefault(stage, Memory())
        peak, budget = _count(event, "peak_memory"), _count(event, "budget")
        memory.largest = max(memory.largest, peak)
        if budget and peak * memory.budget >= memory.peak * budget:
            memory.peak, memory.budget = peak, budget

    def _fail(self, event: Event, moment: float, cause: str, verdict: str) -> None:
        failure = Failure(
            moment, _text(event, "stage"), _text(event, "dataset"), _text(event, "phase"), _text(event, "task"),
            _count(event, "attempt"), cause, verdict, _text(event, "message"), _count(event, "peak_memory"),
            _count(event, "budget"),
        )  # fmt: skip
        self.failures.append(failure)
        if (failure.stage, cause) in self.causes or len(self.causes) < MOST_STEPS:
            self.causes[failure.stage, cause] += 1

    def _end(self, event: Event, moment: float) -> None:
        step = self._step(event, moment)
        if step is None:
            return
        step.rows, step.state = _optional(event, "rows"), "reused" if event.get("reused") is True else "done"
        if event["event"] == "step_failed":
            kinds = {PartialError.__name__: "partial", **dict.fromkeys(STOPPED, "interrupted")}
            step.state, step.reason = kinds.get(_text(event, "error"), "failed"), _text(event, "reason")


def _text(event: Event, name: str) -> str:
    value = event.get(name)
    if not isinstance(value, str):
        return ""
    return value if len(value) <= MOST_TEXT else f"{value[:MOST_TEXT]}…"


def _number(event: Event, name: str) -> float:
    value: Any = event.get(name)
    usable = isinstance(value, int | float) and math.isfinite(value) and 0 <= value < 1e11
    return float(value) if usable else 0.0


def _count(event: Event, name: str) -> int:
    return _optional(event, name) or 0


def _optional(event: Event, name: str) -> int | None:
    value = event.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
