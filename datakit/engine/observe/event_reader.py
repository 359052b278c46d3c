"""Reads the `events.jsonl` of a run while the run writes it, and derives the state of each step from the events.

Each `read` reads only what was added since the last one (`event_tail.py`). Events or fields that are missing (because
an earlier version of datakit wrote fewer, because they are in a rotated file, or because the log is damaged) do no
harm: less is shown, until a heartbeat states the current phase and its counts.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field

from datakit.engine.executor import Verdict
from datakit.engine.observe.event_tail import Event, EventTail
from datakit.engine.observe.step_views import StepView
from datakit.errors import PartialError

FAILED = (Verdict.FAIL, Verdict.REFUSE)
STOPPED = (KeyboardInterrupt.__name__, SystemExit.__name__)


@dataclass
class RunEvents:
    """The events of one run.

    url: the run's `events.jsonl`. started, ended: the run's first and last event, if they were written.
    last: the time of the newest event, by the clock of the run's machine. views: the state of each step, in order.
    """

    url: str
    started: Event | None = None
    ended: Event | None = None
    last: float | None = None
    views: dict[str, StepView] = field(default_factory=dict)
    _began: dict[str, float] = field(default_factory=dict)
    _tail: EventTail = field(init=False)

    def __post_init__(self) -> None:
        self._tail = EventTail(self.url)

    def read(self) -> bool:
        """Read the new events. Return True if there are any."""
        found = False
        for event in self._tail.read():
            found, self.last = True, event["time"]
            with suppress(KeyError, TypeError, ValueError):  # a field is missing, or is not what it should be
                self._apply(event)
        return found

    def _apply(self, event: Event) -> None:
        match event["event"]:
            case "run_started":
                self.started = event
            case "run_ended":
                self.ended = event
            case "step_started":
                self._view(event)
            case "phase_started" | "heartbeat" if event.get("phase"):
                view = self._view(event)
                view.phase, view.total, view.done = event["phase"], event["tasks"], event["done"]
                view.failed = event.get("failed", 0)
            case "attempt_ended":
                self._count(event)
            case "step_ended" | "step_failed":
                self._end(event)

    def _view(self, event: Event) -> StepView:
        """Return the state of the event's step. A step that is not named in any earlier event is taken to have started
        at the time of this event.
        """
        name = f"{event['stage']} {event['dataset']}"
        if name not in self.views:
            self.views[name] = StepView(name, started=time.monotonic() - max(0.0, time.time() - event["time"]))
            self._began[name] = event["time"]
        return self.views[name]

    def _count(self, event: Event) -> None:
        view = self._view(event)
        view.done += event["verdict"] == Verdict.DONE
        view.failed += event["verdict"] in FAILED
        if event["budget"] and event["peak_memory"] * view.budget >= view.peak_memory * event["budget"]:
            view.peak_memory, view.budget = event["peak_memory"], event["budget"]  # the attempt closest to its budget

    def _end(self, event: Event) -> None:
        view = self._view(event)
        view.ended = view.started + max(0.0, event["time"] - self._began[view.name])
        view.reused = event.get("reused", False)
        if event["event"] == "step_failed":
            kinds = {PartialError.__name__: "partial", **dict.fromkeys(STOPPED, "interrupted")}
            view.error = kinds.get(event["error"], "failed")
