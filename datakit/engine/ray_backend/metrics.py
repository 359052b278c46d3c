"""A run's numbers for Prometheus, through Ray: what each node's metrics endpoint shows while the run goes on.

The driver publishes them, from the events of `engine/observe/observer.py`, with few labels: dataset, stage, phase, and
the cause of an attempt; never a task or a record, of which there are too many to label by. Ray sends them every 10
seconds and once more when the driver leaves, so the counts of a short run are there, too; gauges go with the driver.
The driver's node needs `ray[default]`; without, Ray drops them. The names are in docs/operations.md.

Cost: 20 microseconds an attempt. Ray is imported when the first phase begins: it is there by then.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from datakit.engine.executor import Outcome, Verdict
from datakit.engine.observe.observer import SilentObserver
from datakit.engine.task import Phase, Step
from datakit.storage.manifest import Manifest

PLACE = ("dataset", "stage", "phase")
SECONDS = [0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0]
BYTES = [float(1 << power) for power in range(24, 38, 2)]  # 16 MiB to 64 GiB
GAUGE_SECONDS = 1.0


@dataclass
class _Progress:
    """The tasks of the phase that runs."""

    left: int = 0
    slots: int = 0
    sizes: dict[str, int] | None = None


class RayMetrics(SilentObserver):
    """Publishes what it sees. For a run on Ray only."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._place: dict[str, str] = dict.fromkeys(PLACE, "")
        self._now, self._published = _Progress(), 0.0

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        """Other labels from here on."""
        self._metrics = self._metrics or _metrics()
        self._stop()
        self._place = {"dataset": step.dataset, "stage": step.stage, "phase": phase.name}
        sizes = {task.key: task.input_bytes for task in phase.tasks}
        self._now = _Progress(len(phase.tasks) - done, slots, sizes)
        self._publish()

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        """Counts."""
        self._count("attempts", 1, cause=outcome.cause.value)
        self._observe("attempt_seconds", outcome.seconds)
        self._observe("attempt_peak_bytes", outcome.peak_memory)
        if verdict in (Verdict.DONE, Verdict.FAIL):
            self._now.left -= 1
            self._count("tasks_done" if verdict is Verdict.DONE else "tasks_failed", 1)
        if outcome.result is not None:
            assert self._now.sizes is not None
            self._count("records", outcome.result.records)
            self._count("records_quarantined", sum(record.records for record in outcome.result.quarantined))
            self._count("bytes_read", self._now.sizes.get(outcome.key, 0))
            self._count("bytes_written", sum(output.bytes for output in outcome.result.outputs))
            self._set("last_done_time", time.time())

    def tick(self) -> None:
        """Gauges, now and then."""
        if time.monotonic() - self._published >= GAUGE_SECONDS:
            self._publish()

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        """Nothing runs."""
        self._stop()

    def step_failed(self, step: Step, error: BaseException) -> None:
        """Nothing runs."""
        self._stop()

    def _stop(self) -> None:
        self._now = _Progress()
        if self._place["stage"]:
            self._publish()

    def _publish(self) -> None:
        """How many run: those that are left, at most the slots."""
        running = min(self._now.left, self._now.slots)
        self._set("slots", self._now.slots)
        self._set("tasks_running", running)
        self._set("tasks_waiting", self._now.left - running)
        self._published = time.monotonic()

    def _count(self, name: str, amount: int, **tags: str) -> None:
        if amount:
            self._metrics[name].inc(amount, self._place | tags)

    def _observe(self, name: str, value: float) -> None:
        self._metrics[name].observe(value, self._place)

    def _set(self, name: str, value: float) -> None:
        if self._metrics:
            self._metrics[name].set(value, self._place)


def _metrics() -> dict[str, Any]:
    """All of them, by the name without its prefix. Ray adds `ray_` before it, and `_total` after that of a counter."""
    from ray.util.metrics import Counter, Gauge, Histogram

    counters = {
        "attempts": "Attempts that ended, by cause",
        "tasks_done": "Tasks that are done",
        "tasks_failed": "Tasks that failed for good",
        "records": "Records that tasks have read",
        "records_quarantined": "Records that tasks have left out",
        "bytes_read": "Bytes of input of the tasks that are done",
        "bytes_written": "Bytes of output of the tasks that are done",
    }
    gauges = {
        "slots": "CPUs that the run may use",
        "tasks_running": "Tasks that are left, at most one for each slot",
        "tasks_waiting": "Tasks that are left beside those",
        "last_done_time": "When the last task was done, in seconds since 1970",
    }
    seconds, peak = "Slot time of an attempt", "Peak of an attempt's memory, as its budget counts it"
    return (
        {
            name: Counter(f"datakit_{name}", text, (*PLACE, *(("cause",) if name == "attempts" else ())))
            for name, text in counters.items()
        }
        | {name: Gauge(f"datakit_{name}", text, PLACE) for name, text in gauges.items()}
        | {
            "attempt_seconds": Histogram("datakit_attempt_seconds", seconds, SECONDS, PLACE),
            "attempt_peak_bytes": Histogram("datakit_attempt_peak_bytes", peak, BYTES, PLACE),
        }
    )
