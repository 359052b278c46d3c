"""Follows the runs that somebody is looking at: one follower per run, shared by all browsers.

A follower looks at its file when asked, but at most once within the root's `pause`, so the cost does not grow with the
number of browsers. Nothing runs in the background: a run that nobody looks at costs nothing. The MOST followers that
were used last are kept; the file of any other run is read again from the beginning.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from datakit.engine.observe.event_tail import EventTail
from datakit.engine.observe.liveness import driver_alive, is_local, patience
from datakit.errors import DatakitError
from datakit.serve.root import Entry, ServedRoot, log_of
from datakit.serve.run_state import RunState
from datakit.serve.training_state import TrainingState
from datakit.storage import locks, urls
from datakit.storage.manifest import FILE_NAME as MANIFEST
from datakit.trainer.metrics.json_lines import FILE_NAME as METRICS
from datakit.trainer.run_directory.run_lock import LOCK

MOST = 128  # more than the training runs on a page and the open streams together, so none is read twice
T = TypeVar("T")
Health = Literal["running", "silent", "dead", "ended"]


@dataclass
class Follower:
    """Follows a run or a training run. problem: why its file cannot be read. seen: the time of the newest event by the
    monotonic clock.
    """

    root: ServedRoot
    entry: Entry
    state: RunState = field(default_factory=RunState)
    training: TrainingState = field(init=False)
    problem: str = ""
    seen: float = field(default_factory=time.monotonic)
    finished: bool = False
    _looked: float | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.training = TrainingState(self.entry.url)
        self._tail = EventTail(log_of(self.entry), rotated=True)

    @property
    def unreadable(self) -> int:
        """The number of lines that could not be read."""
        return self.training.unreadable if self.entry.kind == "training" else self._tail.unreadable

    def look(self) -> None:
        """Read what is new, unless that was done less than a pause ago."""
        with self._lock:
            if self._looked is not None and time.monotonic() - self._looked < self.root.pause and not self._tail.behind:
                return
            first, self._looked = self._looked is None, time.monotonic()
            try:
                self._require_inside()
                self._look_at_training(first) if self.entry.kind == "training" else self._look_at_events(first)
                self.problem = ""
            except (DatakitError, OSError) as error:
                self.problem = str(error)

    def _require_inside(self) -> None:
        names = (METRICS, LOCK, MANIFEST) if self.entry.kind == "training" else [
            info.path for info in urls.listing(self.entry.url)
        ]  # fmt: skip
        for name in names:
            if not self.root.inside(urls.join(self.entry.url, name)):
                raise DatakitError(f"{name} in {self.entry.url} is a link out of the root; it is not followed")

    def _look_at_events(self, first: bool) -> None:
        before = self.state.version
        for event in self._tail.read():
            self.state.apply(event)
        if self.state.version > before and self.state.last is not None:
            self.seen = time.monotonic() - (max(0.0, time.time() - self.state.last) if first else 0.0)

    def _look_at_training(self, first: bool) -> None:
        self.finished = urls.exists(urls.join(self.entry.url, MANIFEST))
        if self.training.read():
            written = urls.modified(urls.join(self.entry.url, METRICS)) if first else time.time()
            self.seen = time.monotonic() - max(0.0, time.time() - written)

    def silent(self) -> float:
        """Return the seconds since the newest event or row."""
        return max(0.0, time.monotonic() - self.seen)

    def health(self) -> Health:
        """Return "ended" (the log of a run or the manifest of a training run says so), "dead" (the process is gone or,
        in a run on another machine, has missed three heartbeats), "silent" (the process may exist, but has written
        nothing for three heartbeats), or "running".
        """
        with self._lock:
            return self._training_health() if self.entry.kind == "training" else self._run_health()

    def _run_health(self) -> Health:
        if self.state.ended is not None:
            return "ended"
        if not driver_alive(self.entry.name, self.state.started, self.silent()):
            return "dead"
        late = is_local(self.state.started) and self.silent() > patience(self.state.started)
        return "silent" if late else "running"

    def _training_health(self) -> Health:
        if self.finished:
            return "ended"
        if not urls.is_local(self.entry.url):
            return "silent" if self.silent() > patience(None) else "running"
        return "running" if locks.is_locked(Path(urls.local_path(self.entry.url)) / LOCK) else "dead"

    def version(self) -> tuple[object, ...]:
        """Return a value that changes whenever the page of this run would change."""
        with self._lock:
            return (self.state.version, self.training.version, self.health(), self.problem, self.unreadable)

    def composed(self, make: Callable[[Follower], T]) -> T:
        """Return what `make` composes from this follower. Meanwhile, no other thread changes its state."""
        with self._lock:
            return make(self)


@dataclass
class Followers:
    """The followers of a root."""

    root: ServedRoot
    _found: OrderedDict[Entry, Follower] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, entry: Entry) -> Follower:
        """Return the follower of an entry, after it has looked at what is new."""
        with self._lock:
            follower = self._found.pop(entry, None) or Follower(self.root, entry)
            self._found[entry] = follower
            while len(self._found) > MOST:
                self._found.popitem(last=False)
        follower.look()
        return follower
