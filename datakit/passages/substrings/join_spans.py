"""Joins the spans of copied substrings that overlap or touch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from datakit.passages.config import SUBSTRING
from datakit.passages.phase_data import SPAN, Search
from datakit.passages.substrings.rows import table_of

WIDTH = np.int64(1 << 33)  # positions are below 2**32


class Joining:
    """Joins spans table by table, so that documents with very many of them do not fill the memory. Those of a document
    that several tables hold must be joined again. read: the number of spans before they were joined, by search.
    """

    def __init__(self, searches: Sequence[Search]) -> None:
        self._substrings = [one.number for one in searches if one.config.unit == SUBSTRING]
        self.read = np.zeros(len(searches), np.int64)

    def joined(self, table: pa.Table) -> pa.Table:
        """Return a table without the spans that others contain. table: rows of SPAN, in the order of row and start,
        which the result keeps.
        """
        search = table["search"].to_numpy()
        self.read += np.bincount(search, minlength=len(self.read))
        if not np.isin(search, self._substrings).any():
            return table
        rows, starts, stops = (table[name].to_numpy() for name in SPAN.names[:3])
        keep, stops = np.ones(len(rows), bool), stops.copy()
        for number in self._substrings:
            mine = np.flatnonzero(search == number)
            first, ends = joined_spans(rows[mine], starts[mine], stops[mine])
            keep[mine], keep[mine[first]] = False, True
            stops[mine[first]] = ends
        return table_of(SPAN, rows[keep], starts[keep], stops[keep], search[keep])


def joined_spans(rows: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Join spans, which are in the order of row and start. Return the indices of the spans at which the joined ones
    start, and where these stop.

    >>> joined_spans(np.array([1, 1, 1, 2]), np.array([0, 2, 9, 3]), np.array([4, 6, 12, 5]))
    (array([0, 2, 3]), array([ 6, 12,  5]))
    """
    if not len(rows):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    documents = np.cumsum(np.append(False, rows[1:] != rows[:-1])) * WIDTH
    begins, ends = documents + starts.astype(np.int64), np.maximum.accumulate(documents + stops.astype(np.int64))
    first = np.flatnonzero(np.append(True, begins[1:] > ends[:-1]))
    return first, ends[np.append(first[1:], len(rows)) - 1] % WIDTH
