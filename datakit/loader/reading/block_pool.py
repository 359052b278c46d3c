"""Keeps blocks in memory within a byte budget: prefetches wanted blocks in a few threads, and evicts other blocks.

The list of wanted keys, most urgent first, protects the blocks with these keys from eviction. All other blocks may be
evicted, least recently used first. At most `in_flight` blocks are prefetched at a time, and a block is prefetched only
if it fits in the budget. A block that a batch needs now is read immediately, even if this exceeds the budget, because
the batch cannot be served without the block. Such a block normally fits, since `mixture/window_sizes.py` chooses
windows that together fit in the budget.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from datakit.loader.reading.metrics import Metrics
from datakit.loader.sources.rows import Rows


@dataclass
class _Entry:
    nbytes: int
    used: int
    rows: Rows | None = None
    future: Future[Rows] = field(default_factory=Future)


class BlockPool:
    """A pool of `Rows`, each with a key. `load(key)` reads the rows; `size(key)` estimates their size in bytes before
    the read. If `load` raises an error, `require` raises it too; the next call that needs the key starts a new read.
    """

    def __init__(
        self,
        load: Callable[[Any], Rows],
        size: Callable[[Any], int],
        metrics: Metrics,
        *,
        budget_bytes: int,
        in_flight: int,
    ) -> None:
        self._load, self._size, self._metrics = load, size, metrics
        self._budget, self._in_flight = budget_bytes, in_flight
        self._threads = ThreadPoolExecutor(in_flight, thread_name_prefix="datakit-loader")
        self._lock = threading.RLock()
        self._entries: dict[Hashable, _Entry] = {}
        self._bytes = 0
        self._reading = 0
        self._clock = 0
        self._wanted: Sequence[Hashable] = ()
        self._next = 0
        self._protected: set[Hashable] = set()

    @property
    def used_bytes(self) -> int:
        """Size in bytes of the blocks that are in memory or being read."""
        return self._bytes

    @property
    def reading(self) -> int:
        """Number of reads that are running or waiting for a thread."""
        return self._reading

    def want(self, keys: Sequence[Hashable]) -> None:
        """Prefetch the blocks with these keys, in this order. The keys replace those of the previous call."""
        with self._lock:
            self._wanted, self._next, self._protected = keys, 0, set(keys)
            self._pump()

    def require(self, keys: Sequence[Hashable]) -> list[Rows]:
        """Return the rows for these keys. All missing rows are requested before the method waits for any of them."""
        with self._lock:
            self._clock += 1
            entries = [self._entries.get(key) or self._request(key, urgent=True) for key in keys]
            for entry in entries:
                entry.used = self._clock
            late = [entry for entry in entries if entry.rows is None]
        self._metrics.add(misses=len(late), hits=len(entries) - len(late))
        for entry in late:
            entry.future.result()
        return [entry.rows or entry.future.result() for entry in entries]

    def close(self) -> None:
        """Wait for running reads, stop the threads and drop all blocks."""
        with self._lock:
            self._wanted, self._protected = (), set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    def _pump(self) -> None:
        """Keep reading ahead: request wanted blocks while a thread is free and the next block fits in the budget."""
        while self._next < len(self._wanted) and self._reading < self._in_flight:
            key = self._wanted[self._next]
            if key not in self._entries:
                nbytes = self._size(key)
                self._make_room(nbytes)
                if self._bytes + nbytes > self._budget:
                    return
                self._request(key, urgent=False)
            self._next += 1

    def _request(self, key: Hashable, urgent: bool) -> _Entry:
        nbytes = self._size(key)
        if urgent:
            self._make_room(nbytes)
        entry = _Entry(nbytes, self._clock)
        self._threads.submit(self._read, key, entry)  # comes first, because it may fail while the interpreter exits
        self._entries[key] = entry
        self._bytes += nbytes
        self._reading += 1
        return entry

    def _read(self, key: Hashable, entry: _Entry) -> None:
        started = time.perf_counter()
        try:
            rows = self._load(key)
        except BaseException as error:  # noqa: BLE001 - `require` raises it; the next request reads again
            with self._lock:
                self._reading -= 1
                self._bytes -= entry.nbytes
                self._entries.pop(key, None)
            entry.future.set_exception(error)
            return
        self._metrics.add(reads=rows.reads, bytes_read=rows.bytes_read, read_seconds=time.perf_counter() - started)
        with self._lock:
            self._reading -= 1
            self._bytes += rows.nbytes - entry.nbytes
            entry.nbytes, entry.rows = rows.nbytes, rows
        entry.future.set_result(rows)
        with self._lock:
            self._pump()

    def _make_room(self, nbytes: int) -> None:
        """Evict blocks that are neither wanted nor being read, least recently used first, until `nbytes` bytes fit."""
        if self._bytes + nbytes <= self._budget:
            return
        idle = [key for key, entry in self._entries.items() if key not in self._protected and entry.rows is not None]
        for key in sorted(idle, key=lambda key: self._entries[key].used):
            self._bytes -= self._entries.pop(key).nbytes
            self._metrics.add(evictions=1)
            if self._bytes + nbytes <= self._budget:
                return
