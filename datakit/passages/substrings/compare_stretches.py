"""Compares stretches with equal anchors: finds the copies among them, and the substrings that remain undecided."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from datakit.passages.phase_data import SPAN, Search
from datakit.passages.substrings import compare_kernels
from datakit.passages.substrings.anchor_kernels import BEFORE, BOTH
from datakit.passages.substrings.compare_kernels import OPEN, WAITING, Sorted, State
from datakit.passages.substrings.rows import UNDECIDED, sums, table_of


class Compared(NamedTuple):
    """The result of comparing some stretches. spans: the copies, rows of SPAN. undecided: ranges of substrings, rows
    of UNDECIDED.
    """

    spans: pa.Table
    undecided: pa.Table


class Stretches:
    """Compares stretches that are sorted by anchor and hash. spans, undecided: the numbers of spans and of undecided
    substrings yielded, by search.
    """

    def __init__(self, searches: Sequence[Search]) -> None:
        self._sizes = np.array([one.config.least for one in searches], np.int64)
        self._state, self._waiting = State.empty(), list[pa.Table]()
        self.spans, self.undecided = (np.zeros(len(searches), np.int64) for _ in range(2))

    def compare(self, tables: Iterable[pa.Table]) -> Iterator[Compared]:
        """Yield what is known after each table. tables: rows of STRETCH in order."""
        for table in tables:
            if table.num_rows:
                yield self._compare(table)

    def _compare(self, table: pa.Table) -> Compared:
        columns = {name: table[name].to_numpy() for name in table.column_names}
        decided, fates = np.empty(table.num_rows, np.int64), np.empty(table.num_rows, np.uint8)
        before = compare_kernels.compare(
            Sorted(*(columns[name] for name in Sorted._fields)), self._sizes, self._state, decided, fates
        )
        substrings = columns["substrings"].astype(np.int64) * columns["repeats"]
        ranges = _ranges(columns, decided)
        known = [ranges.filter(pa.array(fates == OPEN))]
        if before != WAITING:
            known = [*self._waiting, *known] if before == OPEN else known
            self._waiting = []
        self._waiting.append(ranges.filter(pa.array(fates == WAITING)))
        spans, undecided = self._spans(columns, decided, substrings), pa.concat_tables(known)
        self.spans += np.bincount(spans["search"].to_numpy(), minlength=len(self._sizes))
        self.undecided += sums(undecided["search"].to_numpy(), undecided["substrings"].to_numpy(), len(self._sizes))
        return Compared(spans, undecided)

    def _spans(self, columns: dict[str, np.ndarray], decided: np.ndarray, substrings: np.ndarray) -> pa.Table:
        copied = np.flatnonzero(decided < substrings)
        starts = columns["start"][copied].astype(np.int64)
        stops = starts + substrings[copied] - 1 + self._sizes[columns["search"][copied]]
        return spans_of(columns, copied, starts + decided[copied], stops)


def spans_of(columns: dict[str, np.ndarray], copied: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> pa.Table:
    """Return rows of SPAN, without the edges of characters. columns: those of some rows. copied: the indices of the
    rows that are copies. starts, stops: the positions of these.
    """
    edges = columns["edges"][copied]
    starts, stops = starts + (edges & BOTH), stops - (edges >> BEFORE)
    return table_of(SPAN, columns["row"][copied], starts, stops, columns["search"][copied])


def _ranges(columns: dict[str, np.ndarray], counts: np.ndarray) -> pa.Table:
    return table_of(UNDECIDED, columns["anchor"], columns["row"], columns["start"], counts, columns["search"])
