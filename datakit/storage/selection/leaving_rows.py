"""Defines and reads selections: sparse files that list the rows of a normalized partition that leave the dataset.

The file `data/<source>/part-00017-of-00106.parquet` of a select step belongs to the normalized partition of the same
name. It has one row for each document that leaves, in the order of the partition, so `id` and `row` ascend:

    id         the document's id, with which readers verify the row
    row        the document's row in the partition, counted from 0
    reasons    all reasons for which the document leaves, in alphabetical order, at least one

A reader ignores unknown columns, so later versions may add some. It filters by row and does not parse ids, but compares
the listed id of each row that leaves with the id in the partition, so a selection is never applied to another version
of the partition.

Cost: a few bytes per document that leaves. Memory: one row group of the list (65,536 rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.manifest import Manifest, Partition
from datakit.storage.parquet import iterate_shard

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("row", pa.uint64(), nullable=False),
        pa.field("reasons", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
    ]
)
RULE = "rule:"  # before the name of a rule that is the reason
DICTIONARY = ("reasons.list.element",)
ADVICE = "remove the directory of the step that wrote this file, and run again"


@dataclass(frozen=True)
class Selected:
    """The selection of one partition, as far as a plan needs it. leaving: the URL of the list of the rows that leave;
    None if all stay. rows: the number of documents that stay.
    """

    leaving: str | None
    rows: int


def selected(directory: str, manifest: Manifest, source: str, partitions: Sequence[Partition]) -> list[Selected]:
    """Return the selection of each normalized partition of a source. directory, manifest: those of the select step.

    Raises CorruptError if the step's partitions do not match.
    """
    lists = aligned(directory, manifest, source, partitions)
    return [
        Selected(urls.join(directory, listed.path) if listed.rows else None, partition.rows - listed.rows)
        for listed, partition in zip(lists, partitions, strict=True)
    ]


def aligned(directory: str, manifest: Manifest, source: str, partitions: Sequence[Partition]) -> list[Partition]:
    """Return a step's partitions of a source. The step must have one partition for each of `partitions`, with the same
    name; otherwise, CorruptError is raised.
    """
    found = manifest.partitions_of(source)
    if [urls.name(entry.path) for entry in found] != [urls.name(entry.path) for entry in partitions]:
        raise CorruptError(
            f"{directory}: its files for source {source!r} ({len(found)} partitions) are not aligned with the dataset "
            f"({len(partitions)} partitions); remove this directory and run again"
        )
    return found


class LeavingRows:
    """The rows of one partition that leave. The list is read only as far as each batch of the partition requires.

    url: the list of these rows; None if all rows stay. dataset: the URL of the partition, for messages.
    """

    def __init__(self, url: str | None, dataset: str) -> None:
        self._url, self._dataset = url, dataset
        self._tables = iterate_shard(url, ["id", "row"]) if url is not None else iter(())
        self._rows = np.empty(0, np.int64)
        self._ids = pa.nulls(0, pa.string())
        self._first, self._last = 0, -1  # the partition's next row; the last row read from the list

    def among(self, ids: pa.ChunkedArray) -> np.ndarray:
        """Take the partition's next documents, which have these ids. Return the positions of those that leave, int64,
        ascending. Raises CorruptError if the list states a different id for one of them.
        """
        if self._url is None:
            self._first += len(ids)
            return np.empty(0, np.int64)
        found = []
        while True:
            count = int(np.searchsorted(self._rows, self._first + len(ids)))
            positions = self._rows[:count] - self._first
            if not ids.take(_int64(positions)).combine_chunks().equals(self._ids.slice(0, count)):
                raise CorruptError(f"{self._url} lists different ids than {self._dataset} has in these rows; {ADVICE}")
            found.append(positions)
            self._rows, self._ids = self._rows[count:], self._ids.slice(count)
            if len(self._rows) or not self._read_next():
                self._first += len(ids)
                return np.concatenate(found)

    def staying(self, ids: pa.ChunkedArray) -> np.ndarray | None:
        """Like `among`, but return which documents stay, bool [N], or None if all stay."""
        leaving = self.among(ids)
        if not len(leaving):
            return None
        staying = np.ones(len(ids), bool)
        staying[leaving] = False
        return staying

    def skip_to(self, row: int) -> None:
        """Continue at this row of the partition. The rows before it that leave are not compared with the partition."""
        while True:
            count = int(np.searchsorted(self._rows, row))
            self._rows, self._ids = self._rows[count:], self._ids.slice(count)
            if len(self._rows) or not self._read_next():
                break
        self._first = row

    def expect_end(self) -> None:
        """Raise CorruptError if the list contains rows beyond the end of the partition."""
        if len(self._rows) or self._read_next():
            raise CorruptError(
                f"{self._url} lists row {self._rows[0]}, but {self._dataset} has only {self._first} rows; {ADVICE}"
            )

    def _read_next(self) -> bool:
        for table in self._tables:
            if not table.num_rows:
                continue
            rows = np.concatenate([_numbers(chunk) for chunk in table["row"].chunks])
            if rows[0] <= self._last or (np.diff(rows) <= 0).any():
                raise CorruptError(f"{self._url}: its rows are not strictly ascending; {ADVICE}")
            self._rows, self._last = rows, int(rows[-1])
            self._ids = table["id"].combine_chunks()
            return True
        return False


def only(table: pa.Table, staying: np.ndarray) -> pa.Table:
    """Return the rows of a table for which `staying`, bool [N], is true."""
    bits = pa.py_buffer(np.packbits(staying, bitorder="little"))
    return table.filter(pa.BooleanArray.from_buffers(pa.bool_(), len(staying), [None, bits]))


# If pandas is installed, `pa.array` and `to_numpy` would import it in every task, which takes 0.25 s of CPU time
# (measured).
def _int64(values: np.ndarray) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _numbers(column: pa.Array) -> np.ndarray:
    """Return a column of uint64 without nulls as int64 [N]."""
    values = np.frombuffer(column.buffers()[1], np.int64)
    return values[column.offset : column.offset + len(column)]
