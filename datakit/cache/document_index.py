"""Defines the columns of a shard's docs.parquet, and looks up documents there by id or by row, reading as few row
groups as possible. A search for an id reads only shards whose first and last ids enclose that id: about one per source,
because a source's ids ascend. Within these shards, it reads only row groups whose smallest and largest ids, as given by
their statistics, enclose that id. A row group has at most 64 Ki documents. The cache reader imports this module only
when it needs document ids, because a training machine may lack pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.cache.layout import DOCUMENTS_SUFFIX
from datakit.cache.lru import LruCache
from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.manifest import Partition
from datakit.storage.parquet import open_shard, read_group, read_shard

GROUPS_CACHED = 4
SCHEMA = pa.schema([("id", pa.string()), ("tokens", pa.uint32())])  # the columns of *.docs.parquet


def document_table(ids: pa.Array, lengths: np.ndarray) -> pa.Table:
    """Return the documents with these ids and lengths as a table with the columns of docs.parquet."""
    return pa.table([ids.cast(pa.string()), pa.array(lengths.astype(np.uint32))], schema=SCHEMA)


class DocumentIndex:
    """Finds documents by id or row. Thread-safe. row_starts: the first row of each shard, as in `ShardOffsets`."""

    def __init__(self, directory: str, partitions: Sequence[Partition], row_starts: np.ndarray) -> None:
        self._directory, self._partitions, self._row_starts = directory, partitions, row_starts
        self._groups = LruCache[tuple[int, int], Any](GROUPS_CACHED)

    def ids(self, index: int) -> Any:
        """Return a shard's document ids as an Arrow array, without caching them. Raises CorruptError if their number
        differs from the number in the manifest.
        """
        ids = read_shard(self._url(index), ["id"]).column("id").combine_chunks()
        rows = self._partitions[index].rows
        if len(ids) != rows:
            raise CorruptError(f"{self._url(index)} lists {len(ids)} documents, but the manifest says {rows}")
        return ids

    def id_of(self, index: int, row: int) -> str:
        with open_shard(self._url(index)) as shard:
            groups = [shard.metadata.row_group(group).num_rows for group in range(shard.metadata.num_row_groups)]
            ends = np.cumsum(groups)
            group = int(np.searchsorted(ends, row, "right"))
            ids = self._ids(index, group, shard)
        return ids[row - int(ends[group]) + groups[group]].as_py()

    def find(self, identity: str) -> int | None:
        """Return the row, counted over the whole cache, of the document with this id, or None if there is no such
        document. If several sources contain the document, the first of its rows is returned.
        """
        for index in range(len(self._partitions)):
            for row in self.rows_in(index, identity):
                return int(self._row_starts[index]) + row
        return None

    def rows_in(self, index: int, identity: str) -> Iterator[int]:
        """Yield the rows, counted within shard `index`, of its documents with this id."""
        partition = self._partitions[index]
        if _encloses(partition.first_id, identity, partition.last_id):
            yield from self._rows_with(index, identity)

    def _rows_with(self, index: int, identity: str) -> Iterator[int]:
        before = 0
        with open_shard(self._url(index)) as shard:
            for group in range(shard.metadata.num_row_groups):
                described = shard.metadata.row_group(group)
                statistics = described.column(0).statistics
                if statistics is None or _encloses(statistics.min, identity, statistics.max):
                    found = pc.index(self._ids(index, group, shard), pa.scalar(identity)).as_py()
                    if found >= 0:
                        yield before + found
                before += described.num_rows

    def _ids(self, index: int, group: int, shard: Any) -> Any:
        def read() -> Any:
            return read_group(shard, group, self._url(index), ["id"]).column("id").combine_chunks()

        return self._groups.get((index, group), read)

    def _url(self, index: int) -> str:
        return urls.join(self._directory, self._partitions[index].path) + DOCUMENTS_SUFFIX


def _encloses(first: str | None, identity: str, last: str | None) -> bool:
    return (first is None or first <= identity) and (last is None or identity <= last)
