"""Phase `copies`: finds the copies of each passage of some buckets, and routes the spans of those to be marked to the
parts that hold them.

The passages of a bucket arrive in the order of the dataset: tasks of the first phase read neighboring parts and write
passages in order, and an exchange keeps this order. A stable sort by hash therefore puts the copies of a passage next
to one another, in the order of the dataset. The first `keep` copies stay. If a search has an `above` that exceeds its
`keep`, the sorted rows are read twice: groups that extend beyond a window are counted first.

Cost: sorting 33 bytes per passage. Memory: about 200 MiB, whatever the number of passages and of the copies of a
passage (`sorted_blocks.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from datakit.engine.exchange.exchange import ExchangeWriter, in_pieces, read_buckets
from datakit.engine.exchange.row_buckets import bucket_of
from datakit.engine.exchange.sorted_blocks import sort_rows
from datakit.engine.task import TaskContext, TaskResult
from datakit.passages.phase_data import BUDGET_BYTES, COPIES, ROW_BYTES, SPAN, Copied, Search, Shared

HASH = ("high", "low")
Windows = Callable[[], Iterable[pa.Table]]


class _Group(NamedTuple):
    """The last group of equal passages in a window: their hash, and how many of them came so far."""

    hash: tuple[int, int]
    came: int


class _Window(NamedTuple):
    """The groups of equal passages in a window of sorted rows. first: the index of each group's first row. sizes: the
    number of its rows. hashes: uint64 [2, groups].
    """

    first: np.ndarray
    sizes: np.ndarray
    hashes: np.ndarray

    @classmethod
    def of(cls, table: pa.Table) -> _Window:
        """Return the groups of a window, which has at least one row."""
        high, low = (table[name].to_numpy() for name in HASH)
        begins = np.append(True, (high[1:] != high[:-1]) | (low[1:] != low[:-1]))
        first = np.flatnonzero(begins)
        return cls(first, np.diff(np.append(first, len(high))), np.stack([high[first], low[first]]))

    def hash(self, group: int) -> tuple[int, int]:
        """Return the hash of a group."""
        return int(self.hashes[0, group]), int(self.hashes[1, group])

    @property
    def ends(self) -> list[int]:
        """The first and the last group, which may extend beyond the window."""
        return sorted({0, len(self.first) - 1})


class Copies:
    """Marks the copies among passages that are sorted by hash. read, marked: for each search, the numbers of passages
    and of spans. repeated: the number of different passages of which copies were marked.
    """

    def __init__(self, searches: list[Search]) -> None:
        self._keep = np.array([one.config.keep for one in searches], np.int64)
        self._above = np.array([one.config.threshold for one in searches], np.int64)
        self.read, self.marked, self.repeated = (np.zeros(len(searches), np.int64) for _ in range(3))

    def spans(self, windows: Windows) -> Iterator[pa.Table]:
        """Yield the spans to mark. windows: a function that returns all passages in order; it may be called twice."""
        totals = _straddling(windows()) if (self._above > self._keep).any() else None
        before = _Group((-1, -1), 0)
        for table in windows():
            if not table.num_rows:
                continue
            window = _Window.of(table)
            came = before.came if window.hash(0) == before.hash else 0
            yield self._marked(table, window, came, totals)
            last = len(window.first) - 1
            before = _Group(window.hash(last), int(window.sizes[last]) + (came if last == 0 else 0))

    def _marked(self, table: pa.Table, window: _Window, came: int, totals: Counter[tuple[int, int]] | None) -> pa.Table:
        """Return the spans to mark in a window. came: how many passages of the first group came before the window."""
        search, sizes = table["search"].to_numpy(), window.sizes
        ranks = np.arange(table.num_rows) - np.repeat(window.first, sizes)
        ranks[: sizes[0]] += came
        marked = ranks >= self._keep[search]
        if totals is not None:
            whole = sizes.copy()
            for group in window.ends:
                whole[group] = totals[window.hash(group)]
            marked &= np.repeat(whole, sizes) > self._above[search]
        self._count(search, marked, ranks)
        return table.select(SPAN.names).filter(pa.array(marked))

    def _count(self, search: np.ndarray, marked: np.ndarray, ranks: np.ndarray) -> None:
        searches = len(self._keep)
        self.read += np.bincount(search, minlength=searches)
        self.marked += np.bincount(search[marked], minlength=searches)
        first = marked & (ranks == self._keep[search])  # the first copy that is marked
        self.repeated += np.bincount(search[first], minlength=searches)


def _straddling(windows: Iterable[pa.Table]) -> Counter[tuple[int, int]]:
    """Return the total size of each group that is the first or the last one of a window."""
    found = Counter[tuple[int, int]]()
    for table in windows:
        if table.num_rows:
            window = _Window.of(table)
            found.update({window.hash(group): int(window.sizes[group]) for group in window.ends})
    return found


def find(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Find the copies among the passages of one bucket."""
    bucket, common = int(arguments["bucket"]), msgspec.convert(shared, Shared)
    passages = read_buckets(context.step_directory, common.runs, bucket, bucket + 1, context.scratch)
    rows = sort_rows(in_pieces(passages), HASH, context.scratch)
    copies, records = Copies(common.searches), 0
    with ExchangeWriter(context, COPIES, f"{bucket:05d}", common.by_row.count, BUDGET_BYTES) as writer:
        for table in copies.spans(rows.merged):
            writer.write(table, bucket_of(table["row"].to_numpy(), common.by_row))
            records += table.num_rows
            context.report(records, records * ROW_BYTES)
    details = Copied(writer.runs, copies.read.tolist(), copies.marked.tolist(), copies.repeated.tolist())
    counters = {f"passages/repeated/{one.name}": int(copies.repeated[one.number]) for one in common.searches}
    return TaskResult(
        writer.outputs, counters, msgspec.to_builtins(details), records=rows.count, bytes_read=rows.count * ROW_BYTES
    )
