"""Opens a token cache; reads token ranges, blocks, loss masks and documents from it; and checks tokenizers against it.

    cache = open_cache("data/demo")               # the dataset's current cache; a cache's own directory also works
    cache.read(10_000, 14_096)                    # an array of 4,096 tokens
    for block in cache.blocks(): ...              # arrays of 1 Mi tokens; the next ones are read in the background
    for document in cache.documents(): ...        # document.id, document.tokens
    cache.document("5f0c...")                     # the document with this id
    cache[-1], len(cache), cache[10:20]           # documents by row; a slice reads documents only on access

Opening a cache reads only its manifest, which holds the order and sizes of the shards and the metadata of their arrays.
No directory is listed, so even a cache of 10,000 shards opens in a fraction of a second. A binary search maps a
position to its shard, and the shard's array is opened when it is first read. Reading tokens and document boundaries
requires numpy, TensorStore and msgspec; document ids also require pyarrow. A cache is refused if it is unfinished or if
the totals in its manifest contradict each other; the output of any other stage is refused, too. A local shard is
refused on first use if its file is missing or has the wrong size. Reading a block of 1 Mi tokens takes one system call
if the tokens are stored raw on a local disk, and about five requests otherwise. To get many sequences, cut them out of
blocks: reading sequences one at a time costs ten times as much. Thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from datakit.cache import zarr_arrays
from datakit.cache.documents.cache_documents import CacheDocuments
from datakit.cache.layout import TOKENIZER_FILE, ShardFiles, SourceSums, part_name, read_details
from datakit.cache.read_ahead import IN_FLIGHT, Range, block_ranges, read_ahead
from datakit.cache.shard_arrays import ShardArrays
from datakit.errors import NotFoundError, TokenizerError, counted
from datakit.storage import urls
from datakit.storage.latest import current_cache
from datakit.storage.manifest import Manifest, find_manifest

if TYPE_CHECKING:
    import tokenizers
CACHE_BYTES = 64 << 20
SHOWN = 5  # number of sources that `repr` names


@dataclass(frozen=True)
class Shard:
    """Shard `index` of a cache. In the cache, the shard's tokens start at `token_start`, and its documents at row
    `row_start`. bucket: the document bucket that it belongs to; None if its source is not divided.
    """

    index: int
    path: str
    source: str
    tokens: int
    rows: int
    token_start: int
    row_start: int
    bytes: int
    xxh3: str
    files: ShardFiles
    bucket: str | None = None

    @property
    def part(self) -> str:
        """The name of its bucket in mixtures, `source.bucket`, or that of its source, if this is not divided."""
        return part_name(self.source, self.bucket)


class Cache(CacheDocuments):
    """An open token cache, as a sequence of documents: `len(cache)` is their number, and `cache[3]` is the fourth. Use
    it only in the process that opened it. A forked process can open and read raw caches on a local disk. In a forked
    process, reading any other cache raises UsageError if the parent had read a compressed or remote cache before the
    fork.

    contract: the meaning of the tokens. details: the value of `details` in the manifest, including the totals of each
    source, the histogram of document lengths and the form of the arrays. has_loss_mask: True if any shard has a loss
    mask. tokenizer_url: the URL of the tokenizer.json with which the cache was made.
    """

    def __init__(self, directory: str, manifest: Manifest, cache_bytes: int = CACHE_BYTES) -> None:
        super().__init__(directory, manifest, read_details(directory, manifest))
        self.tokenizer_url: str = urls.join(directory, TOKENIZER_FILE)
        self.tokens: int = self._offsets.tokens
        self._arrays = ShardArrays(directory, manifest, self.details, cache_bytes)
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def __repr__(self) -> str:
        names = [*list(self.sources)[:SHOWN], *["..."] * (len(self.sources) > SHOWN)]
        sizes = ((len(self), "document"), (self.tokens, "token"), (len(self.sources), "source"))
        size = ", ".join(counted(number, noun) for number, noun in sizes)
        return f"Cache({self.directory!r}: {size}: {', '.join(names)})"

    @property
    def sources(self) -> dict[str, SourceSums]:
        """The totals of each source, by name."""
        return self.details.sources

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizer with which the cache was made, for decoding the cache's tokens; needs the library `tokenizers`.
        Raises TokenizerError if that library cannot load the tokenizer, which is the case for a custom tokenizer.
        """
        import tokenizers

        data = urls.read_bytes(self.tokenizer_url).decode()
        try:
            return tokenizers.Tokenizer.from_str(data)
        except Exception as error:  # the library raises plain `Exception`
            raise TokenizerError(
                f"{self.tokenizer_url} cannot be loaded by the library `tokenizers` ({str(error)[:200]}); a custom "
                f"tokenizer can only be used through its own package"
            ) from error

    @cached_property
    def shards(self) -> Sequence[Shard]:
        """All shards, in token order."""
        return [self._shard(index) for index in range(len(self.manifest.partitions))]

    def shards_of(self, name: str | None) -> list[Shard]:
        """Return the shards of a source or of a document bucket, which is named `source.bucket`; all shards if `name`
        is None. They follow one another. The list is empty if the cache has no such source or bucket.
        """
        return [shard for shard in self.shards if name in (None, shard.source, shard.part)]

    def part_names(self) -> list[str]:
        """Return all names that `shards_of` knows: each source, followed by its document buckets."""
        return list(dict.fromkeys(name for shard in self.shards for name in (shard.source, shard.part)))

    @property
    def requests(self) -> int:
        """The number of reads since the cache was opened, including TensorStore's reads for other caches."""
        return self._arrays.requests + self._lists_read

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return tokens [start, stop) as a new array of uint16 or uint32. Raises IndexError, CorruptError."""
        return self._arrays.read(self._offsets.locate(start, stop))

    def read_loss_mask(self, start: int, stop: int) -> np.ndarray:
        """Return the loss mask of tokens [start, stop) as bool; True marks targets. Raises IndexError, CorruptError."""
        return self._arrays.read_loss_mask(self._offsets.locate(start, stop))

    def read_async(self, start: int, stop: int) -> Future[np.ndarray]:
        """Start `read(start, stop)` in the background; return a future. At most 4 reads run at once; the rest wait."""
        return self._pool.submit(self.read, start, stop)

    def blocks(self, ranges: Iterable[Range] | None = None, in_flight: int = IN_FLIGHT) -> Iterator[np.ndarray]:
        """Yield each range's tokens (default: all tokens, 1 Mi at a time), with up to `in_flight` concurrent reads."""
        return read_ahead(self.read, block_ranges(self.tokens) if ranges is None else ranges, in_flight)

    def view(self) -> np.ndarray:
        """Return all tokens as one read-only array. The array is a memory map if a single raw shard on a local disk
        holds all tokens; otherwise it is a copy, which takes 2 or 4 bytes of memory per token. Meant for small caches.
        """
        filled = np.flatnonzero(np.diff(self._offsets.token_starts))
        mapped = self._arrays.view(int(filled[0])) if len(filled) == 1 else None
        whole = self.read(0, self.tokens) if mapped is None else mapped
        whole.flags.writeable = False
        return whole

    def shard_view(self, index: int) -> np.ndarray | None:
        """Return one shard's tokens as a read-only memory map, or None if they are not stored raw on a local disk."""
        return self._arrays.view(index) if self.manifest.partitions[index].tokens else None

    def require_tokenizer(self, sha256: str) -> None:
        """Raise TokenizerError unless the cache was made with the tokenizer.json that has this sha256."""
        self.contract.require(sha256, self.directory)

    def require_encoding(self, encode: Callable[[str], Sequence[int]]) -> None:
        """Raise TokenizerError if `encode` encodes one of the contract's sample strings differently from the cache's
        tokenizer. This check is for tokenizers that have no tokenizer.json, or whose tokenizer.json was saved again and
        therefore has a different hash. `encode` must not add special tokens.
        """
        for golden in self.contract.golden:
            found = list(encode(golden.text))
            if found != golden.ids:
                raise TokenizerError(
                    f"the given tokenizer encodes {golden.text!r} as {found}, but {self.directory} was made with one "
                    f"that encodes it as {golden.ids}; use the tokenizer.json in the cache's directory, or make the "
                    f"cache again"
                )

    @property
    def _pool(self) -> ThreadPoolExecutor:
        """This process's reading threads. Each process starts its own, because a fork does not copy threads."""
        # If the process already has a pool, the new one is dropped; it has started no threads yet.
        new = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="datakit-read")
        return self._pools.setdefault(os.getpid(), new)

    def _shard(self, index: int) -> Shard:
        partition = self.manifest.partitions[index]
        return Shard(
            index=index,
            path=partition.path,
            source=partition.source,
            tokens=partition.tokens or 0,
            rows=partition.rows,
            token_start=int(self._offsets.token_starts[index]),
            row_start=int(self._offsets.row_starts[index]),
            bytes=partition.bytes,
            xxh3=partition.xxh3,
            files=self.details.shards[index],
            bucket=partition.bucket,
        )


def open_cache(url: str, cache_bytes: int = CACHE_BYTES) -> Cache:
    """Open the token cache in directory `url` or, if `url` is the directory of a dataset, the dataset's current cache.
    In both cases, the result's `directory` is the directory of the cache itself. Of the cache's files, only the
    manifest is read. `cache_bytes` is the maximum size of the decoded chunks kept in memory. Raises NotFoundError for a
    missing or unfinished cache, UsageError for the output of another stage, CorruptError for an invalid manifest, and
    RootError for an unsupported protocol.
    """
    directory = urls.absolute(url)
    zarr_arrays.key_value_store(directory)  # raises RootError for an unsupported protocol
    manifest = find_manifest(directory)
    found = current_cache(directory) if manifest is None else (directory, manifest)
    if found is None:
        raise NotFoundError(
            f"{directory} holds no finished token cache (it has no manifest.json); run its recipe again with "
            f"`datakit run`, which resumes where the last run stopped"
        )
    return Cache(*found, cache_bytes)
