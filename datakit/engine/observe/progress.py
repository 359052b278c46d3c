"""Displays a run's progress (rates, time left, failures, disk use, memory): a live table on a terminal, plain lines
elsewhere.

Only the driver displays progress, never the workers. The table and the lines show the same state, which `step_views.py`
keeps. The table has one line per step and is no wider than the terminal; plain lines have at most 80 characters.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from datakit import messages
from datakit.engine.disk_limits import size_text
from datakit.engine.executor import Outcome, Verdict
from datakit.engine.observe.observer import RunStart
from datakit.engine.observe.step_views import StepView, StepViews
from datakit.engine.task import Step
from datakit.errors import counted
from datakit.messages import Level
from datakit.printable import printable
from datakit.redaction import redacted
from datakit.storage.manifest import Manifest
from datakit.text.compilation import NOTICE

if TYPE_CHECKING:
    from rich.text import Text

LINE_SECONDS = 30.0
MEGABYTE = 1_000_000
COLUMNS = (
    "step",
    "state",
    "tasks",
    "running",
    "failed",
    "skipped",
    "records/s",
    "MB/s",
    "written",
    "left",
    "peak / budget",
    "time",
)
WORDS = ("step", "state")  # aligned left; the other columns are aligned right
# Columns that are left out, in this order, until the table fits the terminal.
DISPENSABLE = ("records/s", "running", "peak / budget", "MB/s", "left", "skipped", "written")
LINE_WIDTH = 80
MOST_LINES = 10  # running steps that get a line every LINE_SECONDS
GAP = "  "
MIN_NAME = 12  # minimum width, in characters, of the column with the steps' names
MARGIN = 3  # number of lines of the terminal that the table leaves free


class TableView(StepViews):
    """Displays a live table on a terminal, with one line per step. If the steps do not fit on the screen, the running
    steps and those that ended last are shown. The table appears with the first step; before that, nothing is displayed,
    not even an empty line.
    """

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._entered = self._showing = False
        self._live = Live(console=self._console, refresh_per_second=4, get_renderable=self._table)

    def __enter__(self) -> TableView:
        self._entered = True
        return self

    def __exit__(self, *error: object) -> None:
        self._entered = self._showing = False
        self._live.stop()

    def step_started(self, step: Step) -> None:
        super().step_started(step)
        self._show()

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        super().step_ended(step, manifest, reused)
        self._show()

    def _show(self) -> None:
        if self._entered and not self._showing:
            self._showing = True
            self._live.start()

    def note(self, text: str) -> None:
        self._live.console.print(printable(redacted(text)), markup=False, highlight=False)

    def _table(self) -> Text:
        from rich.text import Text

        views, height = list(self.views.values()), self._console.height - MARGIN
        shown = shown_views(views, height) if self._showing else views
        lines, hidden = table_lines(shown, self._console.width), len(views) - len(shown)
        lines += [f"({counted(hidden, 'other step')} not shown)"] * bool(hidden)
        lines += [NOTICE] * any(view.compiling for view in views)
        return Text(printable("\n".join(lines)), no_wrap=True, overflow="ellipsis")


def shown_views(views: Sequence[StepView], height: int) -> list[StepView]:
    """Return at most `height` of the steps, in their original order. Running steps are preferred, the latest first, and
    then the steps that ended last.
    """
    order = sorted(range(len(views)), key=lambda n: (views[n].ended is None, views[n].ended or 0.0, n), reverse=True)
    return [views[number] for number in sorted(order[: max(1, height)])]


def table_lines(views: Sequence[StepView], width: int) -> list[str]:
    """Return a heading and a line per step, none longer than `width`. Columns without values are left out, and if the
    table is too wide, so are the least important columns. If it is still too wide, the names of the steps are cut.
    """
    cells = [_cells(view) for view in views]
    shown = [name for name in COLUMNS if name in ("step", "state") or any(row[name] for row in cells)]
    widths = {name: max(len(name), *(len(row[name]) for row in cells)) for name in shown} if cells else {}
    for name in DISPENSABLE:
        if sum(widths.values()) + len(GAP) * (len(widths) - 1) > width:
            widths.pop(name, None)
    if over := max(0, sum(widths.values()) + len(GAP) * (len(widths) - 1) - width):
        widths["step"] = max(MIN_NAME, widths["step"] - over)
    rows = [{name: name for name in COLUMNS}, *cells]
    return [GAP.join(_padded(name, row[name], size) for name, size in widths.items()).rstrip()[:width] for row in rows]


def _padded(name: str, text: str, width: int) -> str:
    text = text if len(text) <= width else text[: width - 1] + "…"
    return text.ljust(width) if name in WORDS else text.rjust(width)


def _cells(view: StepView) -> dict[str, str]:
    seconds, left, running = max(view.seconds(), 1e-9), view.left(), view.state() == "running"
    rate = view.bytes_now() / MEGABYTE / max(time.monotonic() - view.phase_started, 1e-9)
    ran = "" if view.reused else f"{seconds:,.1f} s"
    values = [
        view.name,
        (view.phase or "running") if running else view.state(),
        f"{view.done}/{view.total}" if view.total else "",
        str(view.running or "") if running else "",
        str(view.failed or ""),
        str(view.quarantined or ""),
        f"{view.records / seconds:,.0f}" if view.records and not view.reused else "",
        f"{rate:,.1f}" if running and view.bytes_now() else "",
        size_text(view.written()) if view.written() else "",
        f"{left:,.0f} s" if left is not None else "",
        f"{view.peak_memory // MEGABYTE} / {view.budget // MEGABYTE} MB" if view.peak_memory else "",
        ran,
    ]
    return dict(zip(COLUMNS, values, strict=True))


class LineView(StepViews):
    """Prints a line when the run starts, when a step starts or ends, when an attempt fails, and whenever 30 s have
    passed without a line. At the level "debug", it also prints a line for each task that is done.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream, self._printed = stream, time.monotonic()

    def __enter__(self) -> LineView:
        return self

    def __exit__(self, *error: object) -> None:
        (self._stream or sys.stderr).flush()

    def _say(self, text: str, level: Level | None = None, *, event: str, **fields: Any) -> None:
        messages.show(text, level, event=event, stream=self._stream, **fields)
        self._printed = time.monotonic()

    def note(self, text: str) -> None:
        self._say(text, event="note")

    def run_started(self, start: RunStart) -> None:
        facts = {"run": start.run, "dataset": start.dataset, "root": start.root, "log": start.log}
        self._say(f"run {start.run} of {start.dataset}; events: {start.log}", Level.INFO, event="run_started", **facts)

    def step_started(self, step: Step) -> None:
        super().step_started(step)
        self._say(f"{step.stage} {step.dataset}: running", event="step_started", **_names(step))

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        super().attempt_ended(outcome, verdict)
        task: dict[str, Any] = {"phase": outcome.phase, "task": outcome.key, "attempt": outcome.number}
        view = self.views.get(outcome.step_directory)
        place = f"{view.name + ': ' if view else ''}task {outcome.key}, attempt {outcome.number}"
        if verdict is Verdict.DONE:
            if messages.settings().level <= Level.DEBUG:
                done = f"{place}: done in {outcome.seconds:.1f} s"
                self._say(done, Level.DEBUG, event="attempt_ended", **task)
            return
        ending = outcome.cause if verdict is Verdict.REFUSE else f"{outcome.cause}, {verdict}"
        # The outcome's message is not printed: `datakit status` and the error at the end of the run show it.
        task |= {"cause": outcome.cause, "verdict": verdict}
        self._say(f"{place}: {ending}", Level.WARNING, event="attempt_ended", **task)

    def kernels_compiling(self, compiling: bool) -> None:
        super().kernels_compiling(compiling)
        if compiling:
            names = ", ".join(view.name for view in self.running())
            self._say(f"{names}: {NOTICE}", event="kernels_compiling")

    def tick(self) -> None:
        super().tick()
        if time.monotonic() - self._printed >= LINE_SECONDS:
            running = [view for view in self.running() if view.phase]
            for view in running[:MOST_LINES]:
                self._say(progress_line(view), event="progress", step=view.name, phase=view.phase, tasks=view.total,
                          done=view.done, running=view.running, failed=view.failed, bytes_written=view.written(),
                          peak_memory=view.peak_memory, seconds_left=view.left())  # fmt: skip
            if len(running) > MOST_LINES:
                self._say(f"and {counted(len(running) - MOST_LINES, 'more running step')}", event="progress_more")

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        super().step_ended(step, manifest, reused)
        view, totals = self.views[step.directory], manifest.totals
        what = "reused" if reused else f"done in {view.seconds():.1f} s"
        text = f"{view.name}: {what}, {counted(totals.rows, 'row')}, {totals.bytes:,} bytes"
        facts = {"reused": reused, "rows": totals.rows, "bytes": totals.bytes}
        self._say(text, event="step_ended", **_names(step), **facts)

    def step_failed(self, step: Step, error: BaseException) -> None:
        super().step_failed(step, error)
        view = self.views[step.directory]
        text = f"{view.name}: {view.state()} after {view.seconds():.1f} s"
        self._say(text, Level.WARNING, event="step_failed", **_names(step), error=type(error).__name__)


def _names(step: Step) -> dict[str, Any]:
    return {"stage": step.stage, "dataset": step.dataset, "directory": step.directory}


def progress_line(view: StepView, width: int = LINE_WIDTH) -> str:
    """Return a line about a running step, at most `width` characters long. If it would be longer, its least important
    parts are left out; if it is still too long, the step's name is cut. A download keeps its rate and its time left.
    """
    left = view.left()
    parts = {
        "tasks": f"{view.phase} {view.done}/{view.total} done",
        "running": f"{view.running} running",
        "failed": f"{view.failed} failed",
        "written": f"{size_text(view.written())} written",
        "rate": f"{view.write_rate() / MEGABYTE:,.0f} MB/s",
        "peak": f"peak {view.peak_memory // MEGABYTE} MB" if view.peak_memory else "",
        "left": f"about {left:,.0f} s left" if left is not None else "",
    }
    last = ["written"] if view.copies else ["left", "rate"]
    line = ""
    for name in ("", "peak", "running", "failed" if not view.failed else "", *last):
        parts.pop(name, None)
        line = ", ".join(filter(None, parts.values()))
        if len(view.name) + 2 + len(line) <= width:
            break
    room = max(MIN_NAME, width - 2 - len(line))
    return f"{view.name if len(view.name) <= room else view.name[: room - 1] + '…'}: {line}"[:width]


def view_for_terminal() -> TableView | LineView:
    """Return a table view if stderr is a terminal and messages have their usual format and level, else a line view."""
    return TableView() if sys.stderr.isatty() and messages.settings() == messages.Settings() else LineView()
