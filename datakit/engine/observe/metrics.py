"""Defines a run's metrics (names, labels, buckets), and updates them in response to the events of `observer.py`.

The same metrics are published through Ray's nodes (`ray_backend/metrics.py`) and, on any machine, as a file or on a
port (`openmetrics.py`). The only labels are dataset, stage, phase, and the reason why an attempt ended; tasks and
records are never labels. docs/operations.md lists the names. Cost: 20 microseconds per attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from datakit.engine.executor import Outcome, Verdict
from datakit.engine.observe.observer import Observer
from datakit.engine.task import Phase, Step
from datakit.storage.manifest import Manifest

LABELS = ("dataset", "stage", "phase")
CAUSE = "cause"
SECONDS_BUCKETS = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)
BYTES_BUCKETS = tuple(float(1 << power) for power in range(24, 38, 2))  # 16 MiB to 64 GiB
PUBLISH_SECONDS = 1.0  # the least time between two updates of the gauges


class Kind(StrEnum):
    """The kind of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """A metric. Its name has no suffix; metrics systems add `_total` to the names of counters."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = LABELS
    buckets: tuple[float, ...] = ()


ATTEMPTS = Metric("datakit_attempts", Kind.COUNTER, "Attempts that ended, by cause", (*LABELS, CAUSE))
TASKS_DONE = Metric("datakit_tasks_done", Kind.COUNTER, "Tasks that are done")
TASKS_FAILED = Metric("datakit_tasks_failed", Kind.COUNTER, "Tasks that failed permanently")
RECORDS = Metric("datakit_records", Kind.COUNTER, "Records that tasks have read")
RECORDS_QUARANTINED = Metric("datakit_records_quarantined", Kind.COUNTER, "Records that tasks have quarantined")
BYTES_READ = Metric("datakit_bytes_read", Kind.COUNTER, "Input bytes of the tasks that are done")
BYTES_WRITTEN = Metric("datakit_bytes_written", Kind.COUNTER, "Output bytes of the tasks that are done")
SLOTS = Metric("datakit_slots", Kind.GAUGE, "CPUs that the run may use")
TASKS_RUNNING = Metric(
    "datakit_tasks_running", Kind.GAUGE, "Tasks that are running: the unfinished ones, up to the number of slots"
)
TASKS_WAITING = Metric(
    "datakit_tasks_waiting", Kind.GAUGE, "Tasks that wait for a slot: the unfinished ones beyond the number of slots"
)
LAST_DONE_TIME = Metric(
    "datakit_last_done_time", Kind.GAUGE, "Time at which a task last succeeded, in seconds since 1970"
)
ATTEMPT_SECONDS = Metric(
    "datakit_attempt_seconds", Kind.HISTOGRAM, "Time an attempt held its slot", buckets=SECONDS_BUCKETS
)
ATTEMPT_PEAK_BYTES = Metric(
    "datakit_attempt_peak_bytes",
    Kind.HISTOGRAM,
    "Peak memory of an attempt, as counted against its budget",
    buckets=BYTES_BUCKETS,
)
METRICS = (
    ATTEMPTS, TASKS_DONE, TASKS_FAILED, RECORDS, RECORDS_QUARANTINED, BYTES_READ, BYTES_WRITTEN, SLOTS, TASKS_RUNNING,
    TASKS_WAITING, LAST_DONE_TIME, ATTEMPT_SECONDS, ATTEMPT_PEAK_BYTES,
)  # fmt: skip


class Registry(Protocol):
    """Holds the values of all metrics, and publishes them."""

    def update(self, metric: Metric, value: float, labels: dict[str, str]) -> None:
        """Add `value` to a counter, set a gauge to it, or count it in a histogram."""


@dataclass
class _PhaseProgress:
    """The progress of a running phase. `input_bytes` maps each task's key to the size of the task's input."""

    labels: dict[str, str] = field(default_factory=lambda: dict.fromkeys(LABELS, ""))
    left: int = 0
    input_bytes: dict[str, int] = field(default_factory=dict)


class RunMetrics(Observer):
    """Updates the metrics of a run. `make_registry` is called when the first phase starts."""

    def __init__(self, make_registry: Callable[[], Registry]) -> None:
        self._make_registry = make_registry
        self._registry: Registry | None = None
        self._phases: dict[str, _PhaseProgress] = {}  # by the step's directory, in the order of their starts
        self._slots, self._published = 0, 0.0

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        self._registry = self._registry or self._make_registry()
        self._stop(step)
        labels = {"dataset": step.dataset, "stage": step.stage, "phase": phase.name}
        input_bytes = {task.key: task.input_bytes for task in phase.tasks}
        self._phases[step.directory] = _PhaseProgress(labels, len(phase.tasks) - done, input_bytes)
        self._slots = slots
        self._publish()

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        phase = self._phases.get(outcome.step_directory) or _PhaseProgress()
        self._update(phase, ATTEMPTS, 1, cause=outcome.cause.value)
        self._update(phase, ATTEMPT_SECONDS, outcome.seconds)
        self._update(phase, ATTEMPT_PEAK_BYTES, outcome.peak_memory)
        if verdict in (Verdict.DONE, Verdict.FAIL):
            phase.left -= 1
            self._update(phase, TASKS_DONE if verdict is Verdict.DONE else TASKS_FAILED, 1)
        if outcome.result is not None:
            self._update(phase, RECORDS, outcome.result.records)
            self._update(phase, RECORDS_QUARANTINED, sum(record.records for record in outcome.result.quarantined))
            self._update(phase, BYTES_READ, phase.input_bytes.get(outcome.key, 0))
            self._update(phase, BYTES_WRITTEN, sum(output.bytes for output in outcome.result.outputs))
            self._update(phase, LAST_DONE_TIME, time.time())

    def tick(self) -> None:
        if time.monotonic() - self._published >= PUBLISH_SECONDS:
            self._publish()

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        self._stop(step)

    def step_failed(self, step: Step, error: BaseException) -> None:
        self._stop(step)

    def _stop(self, step: Step) -> None:
        """Set the gauges of the step's phase to zero."""
        phase = self._phases.pop(step.directory, None)
        if phase is not None:
            self._publish_phase(phase, 0, 0)

    def _publish(self) -> None:
        """Update the gauges. As many unfinished tasks as there are slots count as running. Phases that started earlier
        come first.
        """
        free = self._slots
        for phase in self._phases.values():
            running = min(phase.left, free)
            self._publish_phase(phase, self._slots, running)
            free -= running
        self._published = time.monotonic()

    def _publish_phase(self, phase: _PhaseProgress, slots: int, running: int) -> None:
        self._update(phase, SLOTS, slots)
        self._update(phase, TASKS_RUNNING, running)
        self._update(phase, TASKS_WAITING, phase.left - running if slots else 0)

    def _update(self, phase: _PhaseProgress, metric: Metric, value: float, **more: str) -> None:
        if self._registry is not None and (value or metric.kind is not Kind.COUNTER):
            self._registry.update(metric, value, phase.labels | more)
