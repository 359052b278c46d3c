"""Compares substrings one by one: marks those that equal an earlier one that they do not overlap.

The first substring with a hash decides about all others, because every other one that stands before a substring, and
does not overlap it, stands after the first one. So groups of any size are read in one pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from datakit.passages.phase_data import Search
from datakit.passages.substrings.compare_stretches import spans_of
from datakit.passages.substrings.rows import SUBSTRING_ORDER


class Substrings:
    """Compares substrings that are sorted by hash. spans: the number of spans yielded, by search."""

    def __init__(self, searches: Sequence[Search]) -> None:
        self._sizes = np.array([one.config.least for one in searches], np.int64)
        self._first = np.zeros(4, np.uint64)  # the last hash, and the row and the start of its first substring
        self._begun = False
        self.spans = np.zeros(len(searches), np.int64)

    def compare(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield the spans of copies, rows of SPAN, after each table. tables: rows of SUBSTRING in order."""
        for table in tables:
            if table.num_rows:
                yield self._compare(table)

    def _compare(self, table: pa.Table) -> pa.Table:
        columns = {name: table[name].to_numpy() for name in table.column_names}
        keys = np.stack([columns[name].astype(np.uint64) for name in (*SUBSTRING_ORDER, "row", "start")])
        begins = np.append(True, (keys[:2, 1:] != keys[:2, :-1]).any(axis=0))
        begins[0] = not (self._begun and (keys[:2, 0] == self._first[:2]).all())
        places = np.concatenate([self._first[:, None], keys], axis=1)
        first = np.maximum.accumulate(np.where(begins, np.arange(1, table.num_rows + 1), 0))
        size, starts = self._sizes[columns["search"]], keys[3].astype(np.int64)
        apart = places[2, first] != keys[2]
        copied = np.flatnonzero(apart | (places[3, first].astype(np.int64) + size <= starts))
        self._first, self._begun = places[:, first[-1]].copy(), True
        spans = spans_of(columns, copied, starts[copied], starts[copied] + size[copied])
        self.spans += np.bincount(columns["search"][copied], minlength=len(self._sizes))
        return spans
