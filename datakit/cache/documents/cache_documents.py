"""Defines the base class of `Cache`, which finds documents by row, id or position, and reads them one at a time, in
slices, or in stretches of about 1 Mi tokens.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, SupportsIndex, overload

import numpy as np

from datakit.cache.contract import Contract
from datakit.cache.documents.document import Document, Stretch, record_batches
from datakit.cache.documents.lazy_slice import LazySlice
from datakit.cache.layout import CacheDetails
from datakit.cache.lengths import read_lengths, starts_of, stretches
from datakit.cache.lru import LruCache
from datakit.cache.read_ahead import BLOCK_TOKENS
from datakit.cache.shard_offsets import ShardOffsets
from datakit.errors import UnknownDocumentError
from datakit.storage.manifest import Manifest

if TYPE_CHECKING:
    import pyarrow

    from datakit.cache.document_index import DocumentIndex

STARTS_CACHED = 32  # number of shards


class CacheDocuments(ABC):
    """A cache as a sequence of documents, in the order of its tokens. A document's row is its index in this order."""

    def __init__(self, directory: str, manifest: Manifest, details: CacheDetails) -> None:
        self.directory: str = directory
        self.manifest: Manifest = manifest
        self.details: CacheDetails = details
        self.contract: Contract = details.contract
        self.has_loss_mask: bool = details.loss_mask is not None
        self._offsets = ShardOffsets(directory, manifest.partitions)
        self.documents_count: int = self._offsets.rows
        self._starts, self._lists_read = LruCache[int, np.ndarray](STARTS_CACHED), 0

    @abstractmethod
    def read(self, start: int, stop: int) -> np.ndarray: ...

    @abstractmethod
    def read_loss_mask(self, start: int, stop: int) -> np.ndarray: ...

    def __len__(self) -> int:
        return self.documents_count

    @overload
    def __getitem__(self, row: SupportsIndex) -> Document: ...
    @overload
    def __getitem__(self, row: slice) -> LazySlice[Document]: ...
    def __getitem__(self, row: SupportsIndex | slice) -> Document | LazySlice[Document]:
        return LazySlice(f"Cache({self.directory!r})", range(len(self)), self.document, self.documents)[row]

    def __iter__(self) -> Iterator[Document]:
        return self.documents()

    def document(self, row: SupportsIndex | str) -> Document:
        """Return the document in this row or, if `row` is a string, the document with this id. Raises IndexError for a
        row out of range, and UnknownDocumentError (a KeyError) for an id that is not in the cache.
        """
        if isinstance(row, str):
            found = self.find(row)
            if found is None:
                raise UnknownDocumentError(
                    f"{self.directory} has no document with the id {row!r}; an id has 32 hex digits, and documents "
                    f"that deduplication removed are not in the cache"
                )
            row = found
        index, local = self._offsets.shard_of_row(operator.index(row))
        starts, base = self.document_starts(index), int(self._offsets.token_starts[index])
        tokens = self.read(base + int(starts[local]), base + int(starts[local + 1]))
        return Document(self._documents.id_of(index, local), tokens)

    def documents(self, start: int = 0, stop: int | None = None) -> Iterator[Document]:
        """Yield the documents in rows [start, stop) in order; by default, all documents. Reads at most 1 Mi tokens, or
        one longer document, at a time.
        """
        for part in self._stretches(start, len(self) if stop is None else stop, masks=False):
            yield from part.documents()

    def to_arrow(self, start: int = 0, stop: int | None = None) -> pyarrow.RecordBatchReader:
        """Return a reader of Arrow record batches of about 1 Mi tokens each, which hold the documents in rows [start,
        stop). The columns are id, source, tokens and, if the cache has loss masks, loss_mask, and if it has document
        buckets, bucket. Each batch is made only when it is read. Needs pyarrow.
        """
        parts = self._stretches(start, len(self) if stop is None else stop, masks=self.has_loss_mask)
        return record_batches(parts, self.contract.dtype, self.has_loss_mask, buckets=self.has_buckets)

    def _stretches(self, start: int, stop: int, masks: bool) -> Iterator[Stretch]:
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"rows [{start}, {stop}) are out of range: {self.directory} has {len(self)} documents")
        for index, partition in enumerate(self.manifest.partitions):
            before = int(self._offsets.row_starts[index])
            low, high = max(0, start - before), min(partition.rows, stop - before)
            if low >= high:
                continue
            ids, starts = self._documents.ids(index), starts_of(self.document_lengths(index))
            base = int(self._offsets.token_starts[index])
            for first, last in stretches(starts[low : high + 1], BLOCK_TOKENS):
                bounds = starts[low + first : low + last + 1]
                span = base + int(bounds[0]), base + int(bounds[-1])
                mask = self.read_loss_mask(*span) if masks else None
                chosen = ids.slice(low + first, last - first)
                tokens = self.read(*span)
                yield Stretch(partition.source, chosen, tokens, bounds - bounds[0], mask, partition.bucket)

    def find(self, identity: str) -> int | None:
        """Return the row of the document with this id, or None if absent. Reads about one row group per source."""
        return self._documents.find(identity)

    def find_all(self, identity: str, shards: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield (index of the shard, row in the shard) of each document with this id in these shards. A text that
        several sources contain has the same id in all of them.
        """
        for index in shards:
            yield from ((index, row) for row in self._documents.rows_in(index, identity))

    def row_at(self, position: int) -> int:
        """Return the row of the document that contains the token at this position. Raises IndexError."""
        index, local = self._offsets.shard_of_token(position)
        row = int(np.searchsorted(self.document_starts(index), local, "right")) - 1
        return int(self._offsets.row_starts[index]) + row

    def position_of(self, row: int) -> int:
        """Return the position of the first token of the document in this row. Raises IndexError."""
        index, local = self._offsets.shard_of_row(row)
        return int(self._offsets.token_starts[index]) + int(self.document_starts(index)[local])

    def source_of(self, row: int) -> str:
        """Return the name of the source of the document in this row. Raises IndexError."""
        return self.manifest.partitions[self._offsets.shard_of_row(row)[0]].source

    def bucket_of(self, row: int) -> str | None:
        """Return the document bucket of the document in this row; None if its source is not divided. Raises
        IndexError.
        """
        return self.manifest.partitions[self._offsets.shard_of_row(row)[0]].bucket

    @cached_property
    def has_buckets(self) -> bool:
        """True if a source of the cache is divided into document buckets."""
        return any(partition.bucket is not None for partition in self.manifest.partitions)

    def document_lengths(self, index: int) -> np.ndarray:
        """Read the number of tokens in each document of a shard, uint32 [rows], in one request. Raises CorruptError."""
        self._lists_read += 1
        return read_lengths(self.directory, self.manifest.partitions[index])

    def document_starts(self, index: int) -> np.ndarray:
        """Return the starts of a shard's documents and the end of the last one, in tokens: int64 [rows + 1]. Cached."""
        return self._starts.get(index, lambda: starts_of(self.document_lengths(index)))

    @cached_property
    def _documents(self) -> DocumentIndex:
        from datakit.cache.document_index import DocumentIndex  # needs pyarrow, which a training machine may not have

        return DocumentIndex(self.directory, self.manifest.partitions, self._offsets.row_starts)
