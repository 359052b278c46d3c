"""Blocks in memory, within a budget of bytes: read ahead by a few threads, kept while they are needed, then dropped.

What is wanted is a list, most urgent first, and is protected; what is not on it may go, least recently used first. At
most `in_flight` reads run ahead, and only where they fit in the budget. What a batch needs now is read at once, budget
or not, because nothing else would help; the windows are sized so that it fits.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from datakit.loader.metrics import Metrics
from datakit.loader.rows import Rows

Load = Callable[[], Rows]


@dataclass(frozen=True)
class Wanted:
    """Something to read ahead: how to name it, how to read it, how many bytes it will take."""

    key: Hashable
    load: Load
    nbytes: int


@dataclass
class _Entry:
    future: Future[Rows]
    nbytes: int
    ahead: bool


class BlockPool:
    """See the module."""

    def __init__(self, budget_bytes: int, in_flight: int, metrics: Metrics) -> None:
        self._budget = budget_bytes
        self._in_flight = in_flight
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(in_flight, thread_name_prefix="datakit-loader")
        self._lock = threading.RLock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._used = 0
        self._reading = 0
        self._wanted: Sequence[Wanted] = ()
        self._next = 0
        self._protected: set[Hashable] = set()

    @property
    def used_bytes(self) -> int:
        """Bytes of what is in memory or on its way."""
        return self._used

    def want(self, wanted: Sequence[Wanted]) -> None:
        """Read these ahead, in this order; what was wanted before and is not here any more may go."""
        with self._lock:
            self._wanted, self._next = wanted, 0
            self._protected = {item.key for item in wanted}
            self._pump()

    def require(self, needed: Sequence[Wanted]) -> list[Rows]:
        """These, now: all reads are begun before the first is waited for."""
        with self._lock:
            absent = {item.key for item in needed if item.key not in self._entries}
            entries = [self._entry(item) for item in needed]
            missed = sum(not entry.future.done() for entry in entries)
        self._metrics.add(misses=missed, hits=len(needed) - missed)
        try:
            return [entry.future.result() for entry in entries]
        except BaseException:
            self._forget(absent)
            raise

    def close(self) -> None:
        """Drop everything and end the threads, once the reads under way are over."""
        with self._lock:
            self._wanted, self._protected = (), set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            self._entries.clear()
            self._used = 0

    def _entry(self, item: Wanted) -> _Entry:
        entry = self._entries.get(item.key)
        if entry is None:
            self._make_room(item.nbytes)
            entry = self._begin(item, ahead=False)
        self._entries.move_to_end(item.key)
        return entry

    def _pump(self) -> None:
        """Begin reads ahead while there are threads and room."""
        while self._next < len(self._wanted) and self._reading < self._in_flight:
            item = self._wanted[self._next]
            if item.key not in self._entries:
                self._make_room(item.nbytes)
                if self._used + item.nbytes > self._budget:
                    return
                self._begin(item, ahead=True)
            self._next += 1

    def _begin(self, item: Wanted, ahead: bool) -> _Entry:
        entry = self._entries[item.key] = _Entry(Future(), item.nbytes, ahead)
        self._used += item.nbytes
        self._reading += 1
        self._threads.submit(self._read, item, entry)
        return entry

    def _read(self, item: Wanted, entry: _Entry) -> None:
        begun = time.perf_counter()
        rows, problem = None, None
        try:
            rows = item.load()
        except BaseException as error:  # noqa: BLE001 - it is raised where the block is needed
            problem = error
        with self._lock:
            self._reading -= 1
            nbytes = rows.nbytes if rows is not None else 0
            self._used += nbytes - entry.nbytes
            entry.nbytes = nbytes
            if problem is not None and self._entries.get(item.key) is entry:
                del self._entries[item.key]
        if rows is not None:
            self._metrics.add(reads=rows.reads, bytes_read=rows.bytes_read, read_seconds=time.perf_counter() - begun)
            entry.future.set_result(rows)
        else:
            entry.future.set_exception(problem)
        with self._lock:
            self._pump()

    def _make_room(self, nbytes: int) -> None:
        """Drop what is neither wanted nor being read, least recently used first, until `nbytes` fit."""
        if self._used + nbytes <= self._budget:
            return
        for key in [key for key, entry in self._entries.items() if key not in self._protected and entry.future.done()]:
            entry = self._entries.pop(key)
            self._used -= entry.nbytes
            self._metrics.add(evictions=1)
            if self._used + nbytes <= self._budget:
                return

    def _forget(self, keys: set[Hashable]) -> None:
        """A read failed: let the next attempt read again."""
        with self._lock:
            for key in keys:
                entry = self._entries.get(key)
                if entry is not None and entry.future.done() and entry.future.exception() is not None:
                    del self._entries[key]
