"""Implements `datakit status --watch`: shows what the active runs of a root or a dataset are doing, until they end.

The display follows the runs' `events.jsonl`, so it works from any process and machine that can read the root. On a
terminal, it is a table that is refreshed every second (every 10 seconds for an object store); elsewhere, it consists of
a line per change. A run has ended when its log says so or its driver shows no sign of life
(`engine/observe/liveness.py`).

Cost per refresh: a listing of each dataset's runs and, for each active run, one request for the size of its log and one
for what was added to it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from datakit.cli.console import WIDTH, note, say, seconds_text
from datakit.engine.observe.event_reader import RunEvents
from datakit.engine.observe.liveness import driver_alive, process_runs
from datakit.engine.observe.progress import MARGIN, shown_views, table_lines
from datakit.engine.observe.step_views import StepView
from datakit.errors import counted
from datakit.pipeline.root_layout import run_logs
from datakit.printable import printable
from datakit.storage import urls

REFRESH_SECONDS = 1.0
STORE_SECONDS = 10.0  # between two looks at an object store; each look sends several requests
LINE_SECONDS = 30.0  # between two lines about the same phase


def watch(directory: str) -> bool:
    """Show the active runs below a directory until all have ended. Return False if no run was active."""
    runs = ActiveRuns(urls.absolute(directory))
    runs.look()
    if not runs.found:
        return False
    pause = REFRESH_SECONDS if urls.is_local(runs.directory) else STORE_SECONDS
    with _display() as show:
        show(runs.found)
        while any(run.active() for run in runs.found):
            time.sleep(pause)
            runs.look()
            show(runs.found)
        runs.look()  # events may have been written between the last look and the end of the process
        show(runs.found)
    for run in runs.found:
        note(run.ending())
    return True


@dataclass
class WatchedRun:
    """A run whose events are followed. seen: the time, by the monotonic clock, at which the newest event was read, or
    at which it was written if the first look found it.
    """

    events: RunEvents
    seen: float = 0.0

    @property
    def name(self) -> str:
        """The id of the run, after which its directory is named."""
        return urls.name(urls.parent(self.events.url))

    @property
    def title(self) -> str:
        """The name of the run's dataset, and the id of the run."""
        return f"{urls.name(urls.parent(urls.parent(urls.parent(self.events.url))))}: run {self.name}"

    def look(self) -> None:
        """Read the new events."""
        first = self.events.last is None
        if self.events.read() and self.events.last is not None:
            self.seen = time.monotonic() - (max(0.0, time.time() - self.events.last) if first else 0.0)

    def active(self) -> bool:
        """Return True unless the run has recorded its end or shows no sign of life."""
        if self.events.ended is not None:
            return False
        return driver_alive(self.name, self.events.started, time.monotonic() - self.seen)

    def heading(self) -> str:
        """Return a line with the run's title and the time since its last event."""
        return f"{self.title}, last event {seconds_text(time.monotonic() - self.seen)} ago"

    def ending(self) -> str:
        """Return a line that states how the run has ended."""
        end = self.events.ended
        if end is None:
            return f"{self.title}: has ended without recording how; `datakit status` shows what is done"
        return f"{self.title}: {end['reason']}" + (f" (exit code {end['exit_code']})" if end["exit_code"] else "")


@dataclass
class ActiveRuns:
    """The runs below a directory that were active when they were first seen."""

    directory: str
    found: list[WatchedRun] = field(default_factory=list)
    _known: set[str] = field(default_factory=set)

    def look(self) -> None:
        """Read the new events, including those of runs that have started since the last look.

        Of each dataset's runs, only the newest and those with a process on this machine are considered.
        """
        for logs in run_logs(self.directory):
            for url in logs:
                if url not in self._known and (url == logs[-1] or process_runs(urls.name(urls.parent(url)))):
                    self._add(WatchedRun(RunEvents(url)))
            self._known.update(logs)
        for run in self.found:
            run.look()

    def _add(self, run: WatchedRun) -> None:
        run.look()
        if run.active():
            self.found.append(run)


@contextmanager
def _display() -> Iterator[Callable[[Sequence[WatchedRun]], None]]:
    """Yield a function that shows the state of runs: in a table on a terminal, else in lines."""
    if not sys.stdout.isatty():
        yield Lines().show
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with Live(console=console, auto_refresh=False) as live:

        def show(runs: Sequence[WatchedRun]) -> None:
            lines = table(runs, min(WIDTH, console.width), console.height - MARGIN)
            live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)

        yield show


def table(runs: Sequence[WatchedRun], width: int, height: int) -> list[str]:
    """Return the lines of a heading and a table of steps for each run, none longer than `width`. The
    `height` lines are divided equally among the runs. Of each run's steps, only the last ones that fit are shown, but
    at least one.
    """
    most = max(1, height // len(runs) - 2)
    lines: list[str] = []
    for run in runs:
        views = list(run.events.views.values())
        lines += [run.heading(), *table_lines(shown_views(views, most), width)]
    return [printable(line)[:width] for line in lines]


@dataclass
class Lines:
    """Prints a line when a step enters a phase or ends, and every 30 s if the number of finished tasks has changed."""

    _printed: dict[tuple[str, str], tuple[str, str, float]] = field(default_factory=dict)

    def show(self, runs: Sequence[WatchedRun]) -> None:
        """Print what has changed since the last call."""
        for run in runs:
            for view in run.events.views.values():
                self._show(run, view)
        sys.stdout.flush()

    def _show(self, run: WatchedRun, view: StepView) -> None:
        stage, text, now = f"{view.state()} {view.phase}", _line(view), time.monotonic()
        before = self._printed.get((run.name, view.name), ("", "", 0.0))
        if stage != before[0] or (text != before[1] and now - before[2] > LINE_SECONDS):
            self._printed[run.name, view.name] = (stage, text, now)
            say(text)


def _line(view: StepView) -> str:
    if view.ended is not None:
        return f"{view.name}: {view.state()} after {seconds_text(view.seconds())}"
    if not view.phase:
        return f"{view.name}: {view.state()}"
    return f"{view.name}: {view.phase} {view.done:,} of {counted(view.total, 'task')} done, {view.failed:,} failed"
