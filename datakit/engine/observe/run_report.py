"""Reports the start and the end of a run to its observers, and adds the run's id to an error that ends the run.

    with RunReport(RunStart(...), observer, [EventLog(directory)]) as report:
        ...             # events go to `observer` alone
        report.begin()  # at the first step that has to run; from here on, events also go to the log

A short run that finds everything done leaves no trace, and its root may be read-only. The start of any other run is
reported as soon as a step has to run, or after 30 seconds, whichever comes first (listing and hashing the files of a
large source can take longer). If the run fails earlier, its start is reported then, provided that the dataset exists.
The last event is `run_ended`, even if an error, a bug or a signal that raises an exception ends the run. Only a process
that is killed leaves no such event.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from datakit.engine.observe.event_log import HEARTBEAT_SECONDS, reason_of
from datakit.engine.observe.observer import Observer, ObserverGroup, RunEnding, RunStart
from datakit.errors import DatakitError, exit_code_of
from datakit.storage import urls
from datakit.storage.globs import subdirectories
from datakit.storage.io_errors import read_errors


class RunReport:
    """The observers of a run, as a context manager around the run. `run` and `log` are None until the run begins."""

    def __init__(self, start: RunStart, observer: Observer, more: Sequence[Observer]) -> None:
        """`more`: observers, such as the event log, that receive events once the run has begun."""
        self.observer: Observer = observer
        self.run: str | None = None
        self.log: str | None = None
        self.start, self._more = start, more
        self._created = time.monotonic()
        self._lock = threading.RLock()
        self._timer = threading.Timer(HEARTBEAT_SECONDS, self._begin_if_possible)
        self._timer.daemon = True

    def begin(self) -> None:
        """Report the start of the run, unless it has already been reported."""
        with self._lock:
            if self.run is None:
                self.observer = ObserverGroup([self.observer, *self._more])
                self.run, self.log = self.start.run, self.start.log
                self.observer.run_started(self.start)

    def seconds(self) -> float:
        """Return the time since this object was created, in seconds."""
        return time.monotonic() - self._created

    def __enter__(self) -> RunReport:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._timer.cancel()
            self._timer.join()  # its function may be reporting the start
            if error is not None and self._dataset_exists():
                self._begin_if_possible()
        finally:  # even if a second signal interrupts the lines above
            if self.run is not None:
                name, seconds = kind.__name__ if kind else "", round(self.seconds(), 3)
                self._end(RunEnding(exit_code_of(error), reason_of(error), name, seconds), error)

    def _end(self, ending: RunEnding, error: BaseException | None) -> None:
        if error is None:
            self.observer.run_ended(ending)
            return
        error.add_note(f"run {self.run}; events: {self.log}")
        try:
            self.observer.run_ended(ending)
        except (DatakitError, OSError) as failure:  # on a full disk, for example; the first error is the one to fix
            error.add_note(f"the end of the run is not in its events: {failure}")

    def _begin_if_possible(self) -> None:
        """Report the start even if no step has to run. An unwritable root is not an error in this case."""
        with suppress(DatakitError, OSError):
            self.begin()

    def _dataset_exists(self) -> bool:
        """Return True if the root holds this dataset; if not, the root may be mistyped and is not created."""
        place = urls.join(self.start.root, self.start.dataset)
        with suppress(DatakitError, OSError), read_errors(place):
            return bool(subdirectories(place))
        return False
