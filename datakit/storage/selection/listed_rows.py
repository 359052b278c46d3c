"""Reads lists of rows of a normalized partition, such as the rows that leave, and checks that each list belongs to the
partition.

A list is a Parquet file with the columns `id` and `row`, both strictly ascending, and others. The list is read only as
far as each batch of the partition requires. Rows are found by number, so ids are not parsed; but the listed ids are
compared with those in the partition, so a list is never applied to another version of the partition.

Memory: one row group of the list (at most 65,536 rows).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datakit.errors import CorruptError
from datakit.storage.parquet import iterate_shard

ADVICE = "remove the directory of the step that wrote this file, and run again"


class ListedRows:
    """The listed rows of one partition.

    url: the list; None if it is empty. dataset: the URL of the partition, for messages. schema: the columns of the list
    to be read, `id` and `row` among them.
    """

    def __init__(self, url: str | None, dataset: str, schema: pa.Schema) -> None:
        self._url, self._dataset, self._schema = url, dataset, schema
        self._tables = iterate_shard(url, schema.names) if url is not None else iter(())
        self._table = schema.empty_table()  # the rows that were read and not yet taken
        self._rows = np.empty(0, np.int64)  # their numbers
        self._first, self._last = 0, -1  # the partition's next row; the last row read from the list

    @property
    def next_row(self) -> int:
        """The number of the partition's next row."""
        return self._first

    def take(self, ids: pa.ChunkedArray) -> tuple[np.ndarray, pa.Table]:
        """Take the partition's next documents, which have these ids. Return the positions of those that are listed,
        int64, ascending, and their rows of the list. Raises CorruptError if the list states a different id for one.
        """
        if self._url is None:
            self._first += len(ids)
            return self._rows, self._table
        found, tables = [], []
        while True:
            count = int(np.searchsorted(self._rows, self._first + len(ids)))
            positions, listed = self._rows[:count] - self._first, self._table.slice(0, count)
            if not ids.take(int64_array(positions)).combine_chunks().equals(listed["id"].combine_chunks()):
                raise CorruptError(f"{self._url} lists different ids than {self._dataset} has in these rows; {ADVICE}")
            found.append(positions)
            tables.append(listed)
            self._drop(count)
            if len(self._rows) or not self._read_next():
                self._first += len(ids)
                return np.concatenate(found), pa.concat_tables(tables)

    def skip_to(self, row: int) -> None:
        """Continue at this row of the partition. The listed rows before it are not compared with the partition."""
        while True:
            self._drop(int(np.searchsorted(self._rows, row)))
            if len(self._rows) or not self._read_next():
                break
        self._first = row

    def expect_end(self) -> None:
        """Raise CorruptError if the list contains rows beyond the end of the partition."""
        if len(self._rows) or self._read_next():
            raise CorruptError(
                f"{self._url} lists row {self._rows[0]}, but {self._dataset} has only {self._first} rows; {ADVICE}"
            )

    def _drop(self, count: int) -> None:
        self._rows, self._table = self._rows[count:], self._table.slice(count)

    def _read_next(self) -> bool:
        for table in self._tables:
            if not table.num_rows:
                continue
            self._check_columns(table)
            rows = np.concatenate([_numbers(chunk) for chunk in table["row"].chunks])
            if rows[0] <= self._last or (np.diff(rows) <= 0).any():
                raise CorruptError(f"{self._url}: its rows are not strictly ascending; {ADVICE}")
            self._table, self._rows, self._last = table, rows, int(rows[-1])
            return True
        return False

    def _check_columns(self, table: pa.Table) -> None:
        """Raise CorruptError if a column is missing, has another type, or contains a null."""
        for field in self._schema:
            if field.name not in table.column_names or not table[field.name].type.equals(field.type):
                raise CorruptError(f"{self._url} has no column {field.name!r} of type {field.type}; {ADVICE}")
            if table[field.name].null_count:
                raise CorruptError(f"{self._url}: the column {field.name!r} contains a null; {ADVICE}")


# If pandas is installed, `pa.array` and `to_numpy` would import it in every task, which takes 0.25 s of CPU time
# (measured).
def int64_array(values: np.ndarray) -> pa.Array:
    """Return int64 numbers as an Arrow array, without a copy."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _numbers(column: pa.Array) -> np.ndarray:
    """Return a column of uint64 without nulls as int64 [N]."""
    values = np.frombuffer(column.buffers()[1], np.int64)
    return values[column.offset : column.offset + len(column)]
