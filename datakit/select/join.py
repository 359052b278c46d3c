"""Finds the documents of a partition that leave, by joining the partition, on id, with lists of marked documents. Each
list (such as the attributes that dedup writes) gives a reason for each of its documents. The partition and the lists
are sorted by id and are streamed, so no table of ids is needed: for each row group of the partition, the marks up to
the group's last id are read and located by binary search. The step fails if the ids on any side are not strictly
ascending or if a mark matches no document, because such a join could silently drop the wrong documents.

Cost: reading and parsing ids (a few ns per byte); no text is read. Memory: the ids of one row group (65,536 rows) of
the partition and of each list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.errors import CorruptError
from datakit.storage.ids import ADVICE, OrderedIds
from datakit.storage.parquet import iterate_shard
from datakit.storage.selection.leaving_rows import SCHEMA
from datakit.storage.selection.matching import MatchedRows

BETWEEN = "+"  # separates the reasons in the name of a combination
REASON = pa.string()


@dataclass(frozen=True)
class Joined:
    """A row group after the join. leaving: the documents that leave (see `storage/selection/leaving_rows.py`).

    combinations: the number of documents that leave, for each combination of reasons, such as "exact" or "exact+fuzzy".
    marked_kept: the number of marks without effect, because the recipe does not list their reason. ids: those of all
    documents, as (high, low).
    """

    leaving: pa.Table
    rows_in: int
    combinations: Counter[str]
    marked_kept: int
    ids: tuple[np.ndarray, np.ndarray]


def join(dataset: str, marks: Sequence[str], drop: frozenset[str]) -> Iterator[Joined]:
    """Yield, for each row group of the partition at `dataset`, the documents that one of the files `marks` lists with a
    reason in `drop`. Raises CorruptError if ids are out of order in a file, or if a mark matches no document.
    """
    rows, streams, first = OrderedIds(dataset), [Marks(url) for url in marks], 0
    for table in iterate_shard(dataset, ["id"]):
        if not table.num_rows:
            continue
        high, low = rows.parse(table["id"])
        found = [stream.up_to(high, low, dataset) for stream in streams]
        yield _leaving(table, (high, low), first, found, drop)
        first += table.num_rows
    for stream in streams:
        stream.expect_end(dataset)


def _leaving(
    table: pa.Table,
    ids: tuple[np.ndarray, np.ndarray],
    first: int,
    found: Sequence[tuple[np.ndarray, pa.Array]],
    drop: frozenset[str],
) -> Joined:
    """Return the documents that leave. ids: those of the group, parsed. first: the row, in the partition, of the
    group's first document. found: for each list of marks, the positions of the marked documents in the group, and their
    reasons.
    """
    names, positions, codes = sorted(drop), [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for position, reason in found:
        code = pc.call_function("index_in", [reason], pc.SetLookupOptions(pa.array(names, pa.string())))
        positions.append(position)
        codes.append(pc.fill_null(code, -1).to_numpy(zero_copy_only=False).astype(np.int64))
    position, code = np.concatenate(positions), np.concatenate(codes)
    pairs = np.unique(np.stack([position, code], axis=1)[code >= 0], axis=0)
    row, start, count = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    reasons = pa.array(names, pa.string()).take(pa.array(pairs[:, 1]))
    ends = pa.array(np.append(start, len(pairs)).astype(np.int32))
    lists = pa.ListArray.from_arrays(ends, reasons).cast(SCHEMA.field("reasons").type)
    names_of_rows = table["id"].combine_chunks().take(pa.array(row))
    leaving = pa.Table.from_arrays([names_of_rows, pa.array((first + row).astype(np.uint64)), lists], schema=SCHEMA)
    combinations = _combinations(names, pairs[:, 1], start, count)
    return Joined(leaving, table.num_rows, combinations, int((code < 0).sum()), ids)


def _combinations(names: Sequence[str], codes: np.ndarray, start: np.ndarray, count: np.ndarray) -> Counter[str]:
    """Count the combinations of reasons. codes: the reasons of all documents, as indices in `names`, document by
    document. start, count: for each document, the index of its first reason in `codes`, and the number of its reasons.
    """
    found = Counter[str]()
    for size in np.unique(count).tolist():
        several = codes[start[count == size][:, None] + np.arange(size)]
        for combination, documents in zip(*np.unique(several, axis=0, return_counts=True), strict=True):
            found[BETWEEN.join(str(names[code]) for code in combination.tolist())] += int(documents)
    return found


class Marks:
    """A stream of marks, which is read only as far as each row group of the partition requires. A mark has a value: the
    reason for which the document is marked or, in a subclass, the value in another column.
    """

    def __init__(self, url: str, column: str = "reason", kind: pa.DataType = REASON) -> None:
        self._url, self._column, self._kind = url, column, kind
        self._rows = MatchedRows(url, [column])

    def up_to(self, high: np.ndarray, low: np.ndarray, dataset: str) -> tuple[np.ndarray, pa.Array]:
        """Return the marks of the documents in a row group: for each mark, the index of its document in the group
        (int64) and its value. The arguments are those of `MatchedRows.up_to`.
        """
        positions, rows = self._rows.up_to(high, low, dataset)
        return positions, pa.array([], self._kind) if rows is None else self._values_of(rows)

    def _values_of(self, table: pa.Table) -> pa.Array:
        """Return the values of some marks. Raises CorruptError if they are not valid."""
        values = table.column(self._column).cast(self._kind).combine_chunks()
        if values.null_count:
            raise CorruptError(f"{self._url}: the column `{self._column}` contains a null; {ADVICE}")
        return values

    def expect_end(self, dataset: str) -> None:
        """Raise CorruptError if any marks are left after the last row group."""
        self._rows.expect_end(dataset)
