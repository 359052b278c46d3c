"""Reads the beginning and the end of a run's log, for the list of runs: when it began, what it does now, how it ended.

Cost: for each run, a look-up of the log's size and time and, if either has changed since the last time, two reads.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from datakit.engine.observe.event_tail import Event, parse_event
from datakit.engine.observe.liveness import driver_alive
from datakit.errors import DatakitError, counted
from datakit.exit_codes import ExitCode
from datakit.serve.root import Entry, ServedRoot, log_of
from datakit.serve.run_state import RunState
from datakit.storage import urls

HEAD_BYTES = 1 << 20  # the first event holds the recipe
TAIL_BYTES = 1 << 16
MOST_KEPT = 2_000


@dataclass(frozen=True)
class RunLine:
    """A run in a list. state: "running", "done", "partial", "failed", "dead" or "unreadable". doing: the stage and
    the phase.
    """

    entry: Entry
    state: str
    began: float | None = None
    seconds: float | None = None
    doing: str = ""
    exit_code: int | None = None


def end_state(exit_code: object) -> str:
    """Return the state of a run that ended with this exit code."""
    if exit_code == ExitCode.PARTIAL:
        return "partial"
    return "failed" if exit_code else "done"


@dataclass
class RunLines:
    """Makes lines of a root's runs, and keeps what it has read."""

    root: ServedRoot
    _kept: OrderedDict[Entry, tuple[tuple[int, float], RunState]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def line(self, entry: Entry) -> RunLine:
        """Return the line of a run."""
        try:
            state = self._state(entry)
        except (DatakitError, OSError):
            return RunLine(entry, "unreadable")
        began = state.started["time"] if state.started else None
        last = state.last if state.last is not None else began
        seconds = max(0.0, last - began) if began is not None and last is not None else None
        if state.ended is not None:
            code = state.ended.get("exit_code")
            code = code if isinstance(code, int) else None
            return RunLine(entry, end_state(code), began, seconds, exit_code=code)
        alive = driver_alive(entry.name, state.started, time.time() - (last or 0.0))
        step, others = state.current, sum(one.state == "running" for one in state.steps.values()) - 1
        doing = f"{step.stage} {step.source}" + (f", {step.phase.name}" if step.phase else "") if step else ""
        doing += f" and {counted(others, 'other step')}" if others > 0 else ""
        return RunLine(entry, "running" if alive else "dead", began, seconds, doing)

    def _state(self, entry: Entry) -> RunState:
        log = log_of(entry)
        if not self.root.inside(log):
            raise DatakitError(f"{log} is a link out of the root")
        stamp = urls.stamp(log)
        with self._lock:
            kept = self._kept.get(entry)
        if kept is None or kept[0] != stamp:
            state = RunState()
            for event in _ends(log, stamp[0]):
                state.apply(event)
            kept = (stamp, state)
        with self._lock:
            self._kept[entry] = kept
            self._kept.move_to_end(entry)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return kept[1]


def _ends(log: str, size: int) -> list[Event]:
    """Return the first event of a log, and the events in its last TAIL_BYTES bytes."""
    head = urls.read_range(log, 0, min(size, HEAD_BYTES)).partition(b"\n")[0]
    tail = urls.read_range(log, max(0, size - TAIL_BYTES), size).split(b"\n")[:-1]
    first, rest = parse_event(head), [parse_event(line) for line in (tail if size <= TAIL_BYTES else tail[1:])]
    found = [event for event in (first, *rest) if event is not None]
    return found[1:] if size <= TAIL_BYTES and first is not None else found
