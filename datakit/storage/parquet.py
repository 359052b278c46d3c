"""Reads and writes Parquet shards; decides their compression, dictionaries, statistics and the size of row groups.

Every Parquet file that a stage writes has the same format: zstd compression and a page index. The level is 3, except in
files that other stages read soon and as a whole: with level 1, these are written in half the time and read in two
thirds of it, and are 14 % larger (docs/log.md). Columns of texts, ids and lists are written without dictionary
encoding, because their values are unique; with dictionaries, writing would take 17 % longer (measured). All columns
except those of texts have statistics. The minimum and maximum of a text column would be copies of whole documents: with
these statistics, a document of 200 MB made the writer take 775 MB of memory instead of 200 MB (measured). The positions
at which row groups end depend only on the rows (on their sizes and their number), not on the batches in which the rows
arrived, so equal rows give equal bytes.
Memory: the writer holds at most one row group (16 MiB of values, or one longer document) plus the current batch; a
reader decodes one row group at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datakit.errors import CorruptError
from datakit.storage import atomic, urls
from datakit.storage.manifest import Column
from datakit.storage.row_size import row_sizes

ROW_GROUP_BYTES = 16 << 20
ROW_GROUP_ROWS = 65_536
COMPRESSION_LEVEL = 3
LEVEL_BETWEEN_STAGES = 1


@dataclass(frozen=True)
class ShardInfo:
    """A finished shard: its number of rows, and the size in bytes and the xxh3-128 of its file."""

    rows: int
    bytes: int
    xxh3: str


class ShardWriter:
    """Writes one Parquet file, which appears at `url` when the `with` block ends without an error.

    >>> with ShardWriter(url, schema) as writer:  # doctest: +SKIP
    ...     writer.write(table)
    >>> writer.info.rows  # doctest: +SKIP
    """

    def __init__(
        self, url: str, schema: pa.Schema, dictionary: Sequence[str] = (), level: int = COMPRESSION_LEVEL
    ) -> None:
        """`dictionary` lists the columns with few distinct values, which are encoded with a dictionary. level: the
        level of zstd.
        """
        self.url = url
        self.schema = schema
        self._dictionary, self._level = list(dictionary), level
        self._pending: list[pa.Table] = []
        self._pending_rows = self._pending_bytes = self._rows = 0
        self._info: ShardInfo | None = None

    @property
    def info(self) -> ShardInfo:
        """The committed shard; available after the `with` block."""
        if self._info is None:
            raise RuntimeError(f"{self.url} is not committed yet")
        return self._info

    def __enter__(self) -> ShardWriter:
        self._staging = atomic.staging(self.url)
        self._path: Path = self._staging.__enter__()
        short = [field.name for field in self.schema if not pa.types.is_large_string(field.type)]
        with atomic.storage_errors(self.url):
            self._writer = pq.ParquetWriter(
                str(self._path),
                self.schema,
                compression="zstd",
                compression_level=self._level,
                use_dictionary=self._dictionary,  # pyright: ignore[reportArgumentType] - a list of columns is allowed
                write_page_index=True,
                write_statistics=short,  # pyright: ignore[reportArgumentType] - as above
            )
        return self

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Append rows, whose columns must match the schema."""
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        if not table.num_rows:
            return
        sizes, first = row_sizes(table), 0
        while first < len(sizes):
            stop = first + self._rows_that_fit(sizes[first:])
            self._pending.append(table.slice(first, stop - first))
            self._pending_rows += stop - first
            self._pending_bytes += int(sizes[first:stop].sum())
            if self._pending_bytes >= ROW_GROUP_BYTES or self._pending_rows >= ROW_GROUP_ROWS:
                self._flush()
            first = stop

    def _rows_that_fit(self, sizes: np.ndarray) -> int:
        """Return how many rows, of these sizes, go into the open row group, including the row that fills it."""
        filled = self._pending_bytes + np.cumsum(sizes)
        by_bytes = int(np.searchsorted(filled, ROW_GROUP_BYTES)) + 1
        return min(by_bytes, ROW_GROUP_ROWS - self._pending_rows, len(sizes))

    def _flush(self) -> None:
        if self._pending:
            group = pa.concat_tables(self._pending).combine_chunks()
            self._writer.write_table(group, row_group_size=max(1, group.num_rows))
        self._rows += self._pending_rows
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with atomic.storage_errors(self.url):
                if error is None:
                    self._flush()
                self._writer.close()
            if error is None:
                committed = atomic.commit_file(self._path, self.url)
                self._info = ShardInfo(self._rows, committed.bytes, committed.xxh3)
        finally:
            self._staging.__exit__(kind, error, trace)


def row_groups(sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the ranges [first, stop) of rows that become row groups of a shard. A caller that writes one range at a
    time saves a copy. sizes: the size of each row in bytes, as computed by `row_sizes`.

    >>> list(row_groups(np.array([ROW_GROUP_BYTES - 1, 1, 1])))
    [(0, 2), (2, 3)]
    """
    ends, first = np.cumsum(sizes), 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        filled = int(np.searchsorted(ends, before + ROW_GROUP_BYTES)) + 1
        stop = min(filled, first + ROW_GROUP_ROWS, len(sizes))
        yield first, stop
        first = stop


def open_shard(url: str) -> pq.ParquetFile:
    """Open a Parquet file and read its footer. Raises NotFoundError or CorruptError, or UnreadableError if the URL is
    that of a named pipe, a socket or a device.
    """
    if urls.is_local(url):
        urls.size(url)  # refuses, for example, a named pipe, for whose writer pyarrow would wait
    source: Any = urls.local_path(url) if urls.is_local(url) else urls.open_read(url)
    try:
        return pq.ParquetFile(source)
    except (pa.ArrowInvalid, OSError) as error:  # pyarrow raises OSError for a damaged footer, too
        raise _damaged(url, error) from error


def _damaged(url: str, error: Exception) -> Exception:
    """Return the error to raise for an unreadable shard. Errors of the disk or the store are returned unchanged."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    return CorruptError(f"{url} is not a readable Parquet file: {error}; `datakit validate` shows all damage")


def iterate_shard(url: str, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """Yield the row groups of a shard in order, decoding each when it is requested."""
    with open_shard(url) as shard:
        for group in range(shard.metadata.num_row_groups):
            yield read_group(shard, group, url, columns)


def read_group(shard: pq.ParquetFile, group: int, url: str, columns: list[str] | None = None) -> pa.Table:
    """Decode row group `group` of an open shard. Raises CorruptError if the row group is damaged, or if the number of
    decoded rows differs from the number that the footer states: if rows are missing, pyarrow returns the remaining rows
    without an error.
    """
    try:
        table = shard.read_row_group(group, columns, use_threads=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(url, error) from error
    stated = shard.metadata.row_group(group).num_rows
    if table.num_rows != stated:
        raise CorruptError(f"{url}: row group {group} has {table.num_rows} rows, but the footer states {stated}")
    return table


def find_rows(url: str, identity: str, columns: list[str]) -> list[tuple[int, dict[str, Any]]]:
    """Return the rows with this id as pairs: the row's index in the file, and a mapping from each of `columns` to the
    row's value.

    The file's first column must be `id`. Skips row groups whose statistics rule out the id.
    """
    found: list[tuple[int, dict[str, Any]]] = []
    with open_shard(url) as shard:
        before = 0
        for group in range(shard.metadata.num_row_groups):
            described = shard.metadata.row_group(group)
            bounds = described.column(0).statistics
            if bounds is None or not bounds.has_min_max or bounds.min <= identity <= bounds.max:
                ids = read_group(shard, group, url, ["id"]).append_column("row", pa.array(range(described.num_rows)))
                rows = ids.filter(pc.field("id") == identity)["row"]
                values = read_group(shard, group, url, columns).take(rows).to_pylist() if len(rows) else []
                found += [(before + row, value) for row, value in zip(rows.to_pylist(), values, strict=True)]
            before += described.num_rows
    return found


def read_shard(url: str, columns: list[str] | None = None) -> pa.Table:
    """Read a whole shard as one table. Use this function only for tables that are known to be small."""
    with open_shard(url) as shard:
        table, stated = shard.read(columns, use_threads=False), shard.metadata.num_rows
    if table.num_rows != stated:
        raise CorruptError(f"{url} has {table.num_rows} rows, but its footer states {stated}")
    return table


def columns_of(schema: pa.Schema) -> list[Column]:
    """Convert an Arrow schema to a manifest's list of columns."""
    return [Column(field.name, str(field.type)) for field in schema]
