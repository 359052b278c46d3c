"""Defines a run's Prometheus metrics (names, labels, buckets) and publishes them through the endpoints of Ray's nodes.

The driver updates the metrics in response to the events that `engine/observe/observer.py` defines. The only labels are
dataset, stage, phase, and the reason why an attempt ended; tasks and records are never labels. Ray sends metrics every
10 seconds and once more when the driver exits, so even the counts of a short run arrive. Gauges disappear when the
driver exits. Without `ray[default]` on the driver's node, Ray drops the metrics. docs/operations.md lists the names.
Cost: 20 microseconds per attempt. Importing Ray costs nothing more, because the executor has already imported it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from datakit.engine.executor import Outcome, Verdict
from datakit.engine.observe.observer import Observer
from datakit.engine.task import Phase, Step
from datakit.storage.manifest import Manifest

LABELS = ("dataset", "stage", "phase")
SECONDS_BUCKETS = [0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0]
BYTES_BUCKETS = [float(1 << power) for power in range(24, 38, 2)]  # 16 MiB to 64 GiB
PUBLISH_SECONDS = 1.0  # Ray itself exports gauges every 10 seconds


@dataclass
class _PhaseProgress:
    """The progress of the running phase. `input_bytes` maps each task's key to the size of the task's input."""

    left: int = 0
    slots: int = 0
    input_bytes: dict[str, int] = field(default_factory=dict)


class RayMetrics(Observer):
    """Publishes the metrics of a run through Ray."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._labels: dict[str, str] = dict.fromkeys(LABELS, "")
        self._phase, self._published = _PhaseProgress(), 0.0

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        self._metrics = self._metrics or _create_metrics()
        self._stop()
        self._labels = {"dataset": step.dataset, "stage": step.stage, "phase": phase.name}
        input_bytes = {task.key: task.input_bytes for task in phase.tasks}
        self._phase = _PhaseProgress(len(phase.tasks) - done, slots, input_bytes)
        self._publish()

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        self._count("attempts", 1, cause=outcome.cause.value)
        self._observe("attempt_seconds", outcome.seconds)
        self._observe("attempt_peak_bytes", outcome.peak_memory)
        if verdict in (Verdict.DONE, Verdict.FAIL):
            self._phase.left -= 1
            self._count("tasks_done" if verdict is Verdict.DONE else "tasks_failed", 1)
        if outcome.result is not None:
            self._count("records", outcome.result.records)
            self._count("records_quarantined", sum(record.records for record in outcome.result.quarantined))
            self._count("bytes_read", self._phase.input_bytes.get(outcome.key, 0))
            self._count("bytes_written", sum(output.bytes for output in outcome.result.outputs))
            self._set("last_done_time", time.time())

    def tick(self) -> None:
        if time.monotonic() - self._published >= PUBLISH_SECONDS:
            self._publish()

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        self._stop()

    def step_failed(self, step: Step, error: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        self._phase = _PhaseProgress()
        if self._labels["stage"]:
            self._publish()

    def _publish(self) -> None:
        """Publish the gauges. The unfinished tasks, up to the number of slots, are counted as running."""
        running = min(self._phase.left, self._phase.slots)
        self._set("slots", self._phase.slots)
        self._set("tasks_running", running)
        self._set("tasks_waiting", self._phase.left - running)
        self._published = time.monotonic()

    def _count(self, name: str, amount: int, **tags: str) -> None:
        if amount:
            self._metrics[name].inc(amount, self._labels | tags)

    def _observe(self, name: str, value: float) -> None:
        self._metrics[name].observe(value, self._labels)

    def _set(self, name: str, value: float) -> None:
        if self._metrics:
            self._metrics[name].set(value, self._labels)


def _create_metrics() -> dict[str, Any]:
    """Create all metrics, and return them keyed by name without the prefix `datakit_`. Ray adds the prefix `ray_` to
    all names, and the suffix `_total` to the names of counters.
    """
    from ray.util.metrics import Counter, Gauge, Histogram

    counters = {
        "attempts": "Attempts that ended, by cause",
        "tasks_done": "Tasks that are done",
        "tasks_failed": "Tasks that failed permanently",
        "records": "Records that tasks have read",
        "records_quarantined": "Records that tasks have quarantined",
        "bytes_read": "Input bytes of the tasks that are done",
        "bytes_written": "Output bytes of the tasks that are done",
    }
    gauges = {
        "slots": "CPUs that the run may use",
        "tasks_running": "Tasks that are running: the unfinished ones, up to the number of slots",
        "tasks_waiting": "Tasks that wait for a slot: the unfinished ones beyond the number of slots",
        "last_done_time": "Time at which a task last succeeded, in seconds since 1970",
    }
    seconds, peak = "Time an attempt held its slot", "Peak memory of an attempt, as counted against its budget"
    return (
        {
            name: Counter(f"datakit_{name}", text, (*LABELS, *(("cause",) if name == "attempts" else ())))
            for name, text in counters.items()
        }
        | {name: Gauge(f"datakit_{name}", text, LABELS) for name, text in gauges.items()}
        | {
            "attempt_seconds": Histogram("datakit_attempt_seconds", seconds, SECONDS_BUCKETS, LABELS),
            "attempt_peak_bytes": Histogram("datakit_attempt_peak_bytes", peak, BYTES_BUCKETS, LABELS),
        }
    )
