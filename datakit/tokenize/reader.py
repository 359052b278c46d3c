"""Opens a token cache and reads it: as one long line of tokens, or document by document.

    cache = open_cache("data/demo/tokenize-0123456789ab")
    cache.read(10_000, 14_096)                # np.ndarray of 4096 tokens
    for document in cache.documents(): ...    # document.id, document.tokens

Opening is one read of the manifest: it holds the shards in order, their sizes and their arrays' metadata, so 10,000
shards open in a fraction of a second and no listing is ever trusted. A position is (shard, offset) by binary search; a
shard's array is opened when a read first comes to it, again without a read. Tokens need numpy, TensorStore and msgspec;
only document access needs pyarrow. What does not fit together is refused: an unfinished cache, another stage's output,
sums that do not add up, a file of another size, a missing shard.

Reads of blocks of about 1 Mi tokens are near the disk's speed; of single sequences, one tenth of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from datakit.errors import CorruptError, NotFoundError
from datakit.storage import urls
from datakit.storage.manifest import Manifest, Partition, read_manifest
from datakit.tokenize import arrays
from datakit.tokenize.contract import Contract
from datakit.tokenize.integrity import check_files, read_details
from datakit.tokenize.layout import DATA_FILE, DOCUMENTS_SUFFIX, TOKENIZER_FILE, CacheDetails, ShardFiles

CACHE_BYTES = 64 << 20
CONCURRENCY = 4
OPEN_ARRAYS = 1024
BLOCK_TOKENS = 1 << 20


@dataclass(frozen=True)
class Shard:
    """One shard: `tokens` tokens of the cache from `token_start` on, `rows` documents of it from `row_start` on."""

    path: str
    source: str
    tokens: int
    rows: int
    token_start: int
    row_start: int
    bytes: int
    xxh3: str
    files: ShardFiles


@dataclass(frozen=True)
class Document:
    """A document's id and its tokens, with what the contract puts around it."""

    id: str
    tokens: np.ndarray


class Cache:
    """See the module. Not for sharing between processes by fork once it has read: open one in each."""

    def __init__(self, directory: str, manifest: Manifest, cache_bytes: int = CACHE_BYTES) -> None:
        self.directory, self.manifest = directory, manifest
        self._details = read_details(directory, manifest)
        partitions = manifest.partitions
        self._token_starts = _starts([partition.tokens or 0 for partition in partitions])
        self._row_starts = _starts([partition.rows for partition in partitions])
        self._context = arrays.read_context(cache_bytes, CONCURRENCY)
        self._open: OrderedDict[int, Any] = OrderedDict()
        self._documents: tuple[int, Any, np.ndarray] | None = None

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return int(self._token_starts[-1])

    @property
    def documents_count(self) -> int:
        """How many documents there are."""
        return int(self._row_starts[-1])

    @property
    def contract(self) -> Contract:
        """What the tokens mean."""
        return self._details.contract

    @property
    def details(self) -> CacheDetails:
        """Sums by source, the histogram of document lengths, the form of the arrays."""
        return self._details

    @cached_property
    def shards(self) -> Sequence[Shard]:
        """All shards, in the order of their tokens."""
        return [self._shard(index) for index in range(len(self.manifest.partitions))]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens [start, stop), uint16 or uint32 [stop - start]. Raises IndexError, CorruptError."""
        if not 0 <= start <= stop <= self.tokens:
            raise IndexError(f"tokens [{start}, {stop}) of {self.directory}, which has {self.tokens}")
        parts = list(self._locate(start, stop))
        reads = [(self._array(index)[first:last].read(), index) for index, first, last in parts]
        pieces = [arrays.finish(read, self._place(index)) for read, index in reads]
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty(0, self.contract.dtype)

    def document(self, row: int) -> Document:
        """The document in this row, in the order of the cache. Raises IndexError."""
        if not 0 <= row < self.documents_count:
            raise IndexError(f"document {row} of {self.directory}, which has {self.documents_count}")
        index = int(np.searchsorted(self._row_starts, row, "right")) - 1
        ids, starts = self._documents_of(index)
        local, base = row - int(self._row_starts[index]), int(self._token_starts[index])
        return Document(ids[local].as_py(), self.read(base + int(starts[local]), base + int(starts[local + 1])))

    def documents(self) -> Iterator[Document]:
        """All documents in order; tokens are read in blocks of about 1 Mi, or one longer document."""
        for index in range(len(self.manifest.partitions)):
            ids, starts = self._documents_of(index)
            base, first = int(self._token_starts[index]), 0
            while first < len(ids):
                fitting = int(np.searchsorted(starts, starts[first] + BLOCK_TOKENS, "right")) - 1
                last = max(fitting, first + 1)
                block = self.read(base + int(starts[first]), base + int(starts[last]))
                cuts = (starts[first : last + 1] - starts[first]).tolist()
                names = ids.slice(first, last - first).to_pylist()
                for name, begin, end in zip(names, cuts, cuts[1:], strict=False):
                    yield Document(name, block[begin:end])
                first = last

    @property
    def tokenizer_url(self) -> str:
        """Where the tokenizer.json lies that the cache was made with."""
        return urls.join(self.directory, TOKENIZER_FILE)

    def require_tokenizer(self, sha256: str) -> None:
        """Raises TokenizerError unless the cache was made with the tokenizer.json of this sha256."""
        self.contract.require(sha256, self.directory)

    def validate(self) -> int:
        """Read every file and compare size and checksum with the manifest; the bytes read. Raises CorruptError."""
        return check_files(self.directory, self.contract, self.manifest.partitions, self._details.shards)

    def _shard(self, index: int) -> Shard:
        partition = self.manifest.partitions[index]
        starts = int(self._token_starts[index]), int(self._row_starts[index])
        tokens = int(self._token_starts[index + 1]) - starts[0]
        files = self._details.shards[index]
        sizes = (partition.bytes, partition.xxh3, files)
        return Shard(partition.path, partition.source, tokens, partition.rows, *starts, *sizes)

    def _locate(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(shard, first, last token in it) of each stretch."""
        index = int(np.searchsorted(self._token_starts, start, "right")) - 1
        while start < stop:
            begin, end = int(self._token_starts[index]), int(self._token_starts[index + 1])
            if begin < end:
                yield index, start - begin, min(stop, end) - begin
            start, index = max(start, min(stop, end)), index + 1

    def _array(self, index: int) -> Any:
        if index in self._open:
            self._open.move_to_end(index)
            return self._open[index]
        partition = self.manifest.partitions[index]
        self._check_size(partition)
        assert partition.tokens is not None
        place = urls.join(self.directory, partition.path)
        self._open[index] = arrays.open_array(place, self._details.array, partition.tokens, self._context)
        if len(self._open) > OPEN_ARRAYS:
            self._open.popitem(last=False)
        return self._open[index]

    def _check_size(self, partition: Partition) -> None:
        """On a disk the size is free to know; in an object store the checksum of the index at the file's end tells."""
        if not urls.is_local(self.directory):
            return
        url = urls.join(self.directory, partition.path, DATA_FILE)
        try:
            size = urls.size(url)
        except NotFoundError as error:
            raise CorruptError(f"{url} is missing; remove the cache's directory and make it again") from error
        if size != partition.bytes:
            raise CorruptError(
                f"{url} has {size} bytes, the manifest says {partition.bytes}: it was altered after it was written; "
                f"remove the cache's directory and make it again"
            )

    def _place(self, index: int) -> str:
        return urls.join(self.directory, self.manifest.partitions[index].path)

    def _documents_of(self, index: int) -> tuple[Any, np.ndarray]:
        """The ids and token starts of one shard's documents; the last one asked for is kept."""
        if self._documents is None or self._documents[0] != index:
            from datakit.tokenize.documents import read_documents  # needs pyarrow, which a trainer may not have

            partition = self.manifest.partitions[index]
            found = read_documents(self._place(index) + DOCUMENTS_SUFFIX, partition.rows, partition.tokens or 0)
            self._documents = (index, *found)
        return self._documents[1], self._documents[2]


def open_cache(url: str, cache_bytes: int = CACHE_BYTES) -> Cache:
    """The token cache in directory `url`: one read, of its manifest. `cache_bytes` bounds what is kept of reads.

    Raises NotFoundError (unfinished, or not there), UsageError (not a token cache), CorruptError, RootError.
    """
    directory = urls.absolute(url)
    arrays.key_value_store(directory)  # refuses a protocol that arrays are not read from
    try:
        manifest = read_manifest(directory)
    except NotFoundError as error:
        raise NotFoundError(
            f"{directory} holds no finished token cache (it has no manifest.json); run its recipe again with "
            f"`datakit run`, which goes on where it stopped"
        ) from error
    return Cache(directory, manifest, cache_bytes)


def _starts(counts: Sequence[int]) -> np.ndarray:
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
