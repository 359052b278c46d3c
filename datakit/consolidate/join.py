"""Removes marked documents from a partition by joining it with its attributes on id. The partition and its attributes
are both streamed. Both are sorted by id, so no table of ids is needed: for each row group of the partition, the
attributes up to the group's last id are read and located by binary search. The step fails if the ids on either side
are not strictly ascending or if an attribute matches no document, because such a join could silently drop the wrong
documents.

Cost: ids are parsed once (a few ns per byte), and rows are copied only in row groups that lose rows. Memory: one row
group of the partition (16 MiB, or one larger document) and one of the attributes (65,536 rows).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datakit.errors import CorruptError
from datakit.storage.ids import ids_from_arrow, strictly_ascending
from datakit.storage.parquet import iterate_shard

ADVICE = "the file is damaged or was not written by datakit; remove its step's directory and run again"


@dataclass(frozen=True)
class Joined:
    """A row group after the join. kept: the documents that remain.

    dropped: the number of documents removed for each reason. marked_kept: the number of documents kept although they
    have an attribute. rows: the positions, within the row group, of the documents kept, int64; None if all are kept.
    """

    kept: pa.Table
    rows_in: int
    dropped: Counter[str]
    marked_kept: int = 0
    rows: np.ndarray | None = None


def join(dataset: str, attributes: str | None, drop: frozenset[str]) -> Iterator[Joined]:
    """Yield the row groups of the partition at `dataset`, without the documents that the file `attributes` lists with a
    reason in `drop`. Raises CorruptError if ids are out of order on either side, or if an attribute matches no
    document.
    """
    rows = _OrderedIds(dataset)
    marks = _Attributes(attributes) if attributes is not None else None
    for table in iterate_shard(dataset):
        if not table.num_rows:
            continue
        high, low = rows.parse(table.column("id"))
        if marks is None:
            yield Joined(table, table.num_rows, Counter())
            continue
        position, reason = marks.up_to(high, low, dataset)
        yield _without(table, position, reason, drop)
    if marks is not None:
        marks.expect_end(dataset)


def _without(table: pa.Table, position: np.ndarray, reason: pa.Array, drop: frozenset[str]) -> Joined:
    coded = reason.dictionary_encode()
    names, code = coded.dictionary.to_pylist(), coded.indices.to_numpy()
    counts = Counter(dict(zip(names, np.bincount(code, minlength=len(names)).tolist(), strict=True)))
    dropped = Counter({name: counts[name] for name in names if name in drop})
    if not dropped:
        return Joined(table, table.num_rows, dropped, counts.total())
    leaving = np.isin(code, [index for index, name in enumerate(names) if name in drop])
    keep = np.ones(table.num_rows, bool)
    keep[position[leaving]] = False
    left = counts.total() - dropped.total()
    return Joined(table.filter(pa.array(keep)), table.num_rows, dropped, left, np.flatnonzero(keep))


class _OrderedIds:
    """Parses the ids of a stream and checks that they are strictly ascending, within and across row groups."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._last: tuple[int, int] | None = None

    def parse(self, column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
        """Return the upper and lower halves of the ids, uint64 [N] each; N must be at least 1. Raises CorruptError."""
        try:
            high, low = ids_from_arrow(column)
        except ValueError as error:
            raise CorruptError(f"{self._url}: {error}; {ADVICE}") from error
        first = (int(high[0]), int(low[0]))
        if (self._last is not None and first <= self._last) or not strictly_ascending(high, low):
            raise CorruptError(f"{self._url}: its ids are not strictly ascending; {ADVICE}")
        self._last = (int(high[-1]), int(low[-1]))
        return high, low


class _Attributes:
    """The stream of attributes, read as far as each row group of the partition requires."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._tables = iterate_shard(url, ["id", "reason"])
        self._ids = _OrderedIds(url)
        self._high = self._low = np.empty(0, np.uint64)
        self._reason = pa.array([], pa.string())

    def up_to(self, high: np.ndarray, low: np.ndarray, dataset: str) -> tuple[np.ndarray, pa.Array]:
        """Return the attributes of the documents in a row group: for each attribute, the index of its document in
        the group (int64) and the reason. high, low: the ids of the documents. dataset: the URL of the partition, for
        error messages.
        """
        positions, reasons = [], []
        while True:
            count = count_up_to(self._high, self._low, (int(high[-1]), int(low[-1])))
            positions.append(self._find(high, low, count, dataset))
            reasons.append(self._reason.slice(0, count))
            self._high, self._low = self._high[count:], self._low[count:]
            self._reason = self._reason.slice(count)
            if len(self._high) or not self._read_next():
                return np.concatenate(positions), pa.concat_arrays(reasons)

    def expect_end(self, dataset: str) -> None:
        """Raise CorruptError if any attributes are left after the last row group."""
        if len(self._high) or self._read_next():
            self._refuse(0, dataset)

    def _read_next(self) -> bool:
        for table in self._tables:
            if table.num_rows:
                self._high, self._low = self._ids.parse(table.column("id"))
                self._reason = table.column("reason").cast(pa.string()).combine_chunks()
                if self._reason.null_count:
                    raise CorruptError(f"{self._url}: the column `reason` contains a null; {ADVICE}")
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
