"""Locates rows of a sparse table in a partition, by id. Both are sorted by id and are streamed, so no table of ids is
needed: for each row group of the partition, the table is read up to the group's last id, and its rows are located by
binary search. A row without a document is an error, because such a join could silently use the facts of the wrong
documents.

Cost: parsing ids (a few ns per byte). Memory: one row group of the table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from datakit.errors import CorruptError
from datakit.storage.ids import ADVICE, OrderedIds
from datakit.storage.parquet import iterate_shard


class MatchedRows:
    """The rows of a table that has a column `id`. The table is read only as far as the partition requires."""

    def __init__(self, url: str, columns: Sequence[str]) -> None:
        self._url = url
        self._tables = iterate_shard(url, ["id", *columns])
        self._ids = OrderedIds(url)
        self._high = self._low = np.empty(0, np.uint64)
        self._rows: pa.Table | None = None

    def up_to(self, high: np.ndarray, low: np.ndarray, dataset: str) -> tuple[np.ndarray, pa.Table | None]:
        """Return the rows for the documents of a row group: for each row, the index of its document in the group
        (int64), and the rows themselves (None if there are no more).

        high, low: the halves of the documents' ids, uint64 [N], at least one. dataset: the URL of the partition, for
        messages. Raises CorruptError if a row belongs to no document.
        """
        positions, tables = [np.empty(0, np.int64)], []
        while True:
            count = count_up_to(self._high, self._low, (int(high[-1]), int(low[-1])))
            if self._rows is not None:
                positions.append(self._find(high, low, count, dataset))
                tables.append(self._rows.slice(0, count))
                self._rows = self._rows.slice(count)
            self._high, self._low = self._high[count:], self._low[count:]
            if len(self._high) or not self._read_next():
                return np.concatenate(positions), pa.concat_tables(tables) if tables else None

    def expect_end(self, dataset: str) -> None:
        """Raise CorruptError if any rows are left after the last row group."""
        if len(self._high) or self._read_next():
            self._refuse(0, dataset)

    def _read_next(self) -> bool:
        for table in self._tables:
            if table.num_rows:
                self._high, self._low = self._ids.parse(table.column("id"))
                self._rows = table
                return True
        return False

    def _find(self, high: np.ndarray, low: np.ndarray, count: int, dataset: str) -> np.ndarray:
        position = np.searchsorted(high, self._high[:count])
        # The loop repeats only if ids have equal upper halves, which is possible but does not occur in real data.
        while True:
            here = np.minimum(position, len(high) - 1)
            behind = (high[here] == self._high[:count]) & (low[here] < self._low[:count]) & (position < len(high))
            if not behind.any():
                break
            position = position + behind
        found = (position < len(high)) & (high[here] == self._high[:count]) & (low[here] == self._low[:count])
        if not found.all():
            self._refuse(int(np.flatnonzero(~found)[0]), dataset)
        return position

    def _refuse(self, index: int, dataset: str) -> None:
        document = f"{int(self._high[index]):016x}{int(self._low[index]):016x}"
        raise CorruptError(f"{self._url} names document {document}, which is not in {dataset}; {ADVICE}")


def count_up_to(high: np.ndarray, low: np.ndarray, limit: tuple[int, int]) -> int:
    """Return how many of these ascending ids are less than or equal to `limit`."""
    top, bottom = np.uint64(limit[0]), np.uint64(limit[1])
    first, last = int(np.searchsorted(high, top, "left")), int(np.searchsorted(high, top, "right"))
    return first + int(np.searchsorted(low[first:last], bottom, "right"))
