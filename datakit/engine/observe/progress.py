"""Displays a run's progress (rates, time left, failures, memory): a live table on a terminal, plain lines elsewhere.

Only the driver displays progress, never the workers. The table and the lines show the same state, which `StepViews`
derives from the events in `observer.py`. The rate in MB/s and the remaining time are based on bytes of input.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

from datakit.engine.executor import Outcome, Verdict
from datakit.engine.observe.observer import Observer
from datakit.engine.task import Phase, Step
from datakit.storage.manifest import Manifest

LINE_SECONDS = 30.0
MEGABYTE = 1_000_000
MEBIBYTE = 1 << 20
WORDS = ("stage", "state", "phase")  # headings of the table's columns, aligned left; NUMBERS are aligned right
NUMBERS = ("done", "running", "failed", "quarantined", "records/s", "MB/s", "left", "peak / budget", "time")


@dataclass
class StepView:
    """The displayed state of one step. While the step runs, the counts of bytes and records cover only this run's
    attempts. At the end, `records` becomes the number of rows that the manifest states.
    """

    name: str
    phase: str = ""
    total: int = 0
    done: int = 0
    failed: int = 0
    running: int = 0
    quarantined: int = 0
    records: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    peak_memory: int = 0
    budget: int = 0
    slots: int = 0
    reused: bool = False
    error: str = ""
    started: float = field(default_factory=time.monotonic)
    phase_started: float = field(default_factory=time.monotonic)
    ended: float | None = None

    def seconds(self) -> float:
        """Return the step's duration so far, in seconds."""
        return (self.ended or time.monotonic()) - self.started

    def left(self) -> float | None:
        """Estimate, from the bytes done, the seconds left in the phase; return None if no estimate is possible."""
        passed = time.monotonic() - self.phase_started
        if self.ended is not None or not self.bytes_done or not self.bytes_total:
            return None
        return passed * max(0, self.bytes_total - self.bytes_done) / self.bytes_done

    def state(self) -> str:
        """Return the state as one word."""
        if self.error:
            return "failed"
        if self.reused:
            return "reused"
        return "done" if self.ended is not None else "running"


class StepViews(Observer):
    """Keeps the state of every step of a run. Subclasses display it."""

    def __init__(self) -> None:
        self.views: dict[str, StepView] = {}
        self._current: StepView = StepView("")
        self._sizes: dict[str, int] = {}

    def step_started(self, step: Step) -> None:
        self._current = self.views.setdefault(step.directory, StepView(f"{step.stage} {step.dataset}"))

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        view = self._current
        view.phase, view.total, view.done, view.slots = phase.name, len(phase.tasks), done, slots
        view.bytes_total, view.bytes_done = sum(task.input_bytes for task in phase.tasks), 0
        view.phase_started = time.monotonic()
        self._sizes = {task.key: task.input_bytes for task in phase.tasks}

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        view = self._current
        view.done += verdict is Verdict.DONE
        view.failed += verdict is Verdict.FAIL
        if outcome.budget and outcome.peak_memory * view.budget >= view.peak_memory * outcome.budget:
            view.peak_memory, view.budget = outcome.peak_memory, outcome.budget  # the attempt closest to its budget
        if verdict in (Verdict.DONE, Verdict.FAIL):
            view.bytes_done += self._sizes.get(outcome.key, 0)
        if outcome.result is not None:
            view.records += outcome.result.records
            view.quarantined += sum(record.records for record in outcome.result.quarantined)

    def tick(self) -> None:
        """Estimate the number of running tasks: one per slot, but no more than there are unfinished tasks."""
        view = self._current
        view.running = min(view.slots, view.total - view.done - view.failed)

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        view = self.views.setdefault(step.directory, StepView(f"{step.stage} {step.dataset}"))
        view.ended, view.reused, view.running = time.monotonic(), reused, 0
        view.records = manifest.totals.rows

    def step_failed(self, step: Step, error: BaseException) -> None:
        view = self.views.setdefault(step.directory, StepView(f"{step.stage} {step.dataset}"))
        view.ended, view.error, view.running = time.monotonic(), type(error).__name__, 0


class TableView(StepViews):
    """Displays a live table on a terminal."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(stderr=True), refresh_per_second=4, get_renderable=self._table)

    def __enter__(self) -> TableView:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def _table(self):
        from rich.table import Table

        table = Table(box=None, header_style="bold", pad_edge=False)
        for heading in WORDS:
            table.add_column(heading)
        for heading in NUMBERS:
            table.add_column(heading, justify="right")
        for view in self.views.values():
            table.add_row(*_cells(view))
        return table


def _cells(view: StepView) -> list[str]:
    seconds = max(view.seconds(), 1e-9)
    left, running = view.left(), view.state() == "running"
    return [
        view.name,
        view.state(),
        view.phase if running else "",
        f"{view.done}/{view.total}" if view.total else "",
        str(view.running) if running else "",
        str(view.failed or ""),
        str(view.quarantined or ""),
        "" if view.reused else f"{view.records / seconds:,.0f}",
        f"{view.bytes_done / MEGABYTE / max(time.monotonic() - view.phase_started, 1e-9):,.0f}" if running else "",
        f"{left:,.0f} s" if left is not None else "",
        f"{view.peak_memory // MEBIBYTE} / {view.budget // MEBIBYTE} MiB" if view.peak_memory else "",
        "" if view.reused else f"{seconds:,.1f} s",
    ]


class LineView(StepViews):
    """Prints a line when a step starts or ends, when an attempt fails, and whenever 30 s have passed without a line."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream, self._printed = stream or sys.stderr, time.monotonic()

    def __enter__(self) -> LineView:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.flush()

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)
        self._printed = time.monotonic()

    def step_started(self, step: Step) -> None:
        super().step_started(step)
        self._say(f"{step.stage} {step.dataset}: running")

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        super().attempt_ended(outcome, verdict)
        if verdict is not Verdict.DONE:
            self._say(f"{self._current.name}: task {outcome.key}, attempt {outcome.number}: {outcome.cause} "
                      f"({outcome.message}): {verdict}")  # fmt: skip

    def tick(self) -> None:
        super().tick()
        if time.monotonic() - self._printed >= LINE_SECONDS:
            view, left = self._current, self._current.left()
            eta = f", about {left:,.0f} s left" if left is not None else ""
            self._say(f"{view.name}: {view.phase} {view.done}/{view.total} done, {view.running} running, "
                      f"{view.failed} failed, peak {view.peak_memory // MEBIBYTE} MiB{eta}")  # fmt: skip

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        super().step_ended(step, manifest, reused)
        view = self.views[step.directory]
        what = "reused" if reused else f"done in {view.seconds():.1f} s"
        self._say(f"{view.name}: {what}, {manifest.totals.rows:,} rows, {manifest.totals.bytes:,} bytes")

    def step_failed(self, step: Step, error: BaseException) -> None:
        super().step_failed(step, error)
        self._say(f"{step.stage} {step.dataset}: {type(error).__name__}")


def view_for_terminal() -> TableView | LineView:
    """Return a table view if stderr is a terminal, else a line view."""
    return TableView() if sys.stderr.isatty() else LineView()
