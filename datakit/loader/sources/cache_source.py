"""Opens a token cache (or one source or document bucket of it) as a TokenSource, keeps document boundaries in memory,
and decides whether components share tokens or a tokenizer.

    source = open_source("data/demo/tokenize-0123456789ab", "web")
    source = open_source("data/demo/tokenize-0123456789ab", "web.high")

A dataset's directory stands for the dataset's current cache. Opening a source reads only the cache's manifest. Document
boundaries come from the lengths files of the shards. A shard's lengths file is read as a whole when it is first needed
(one request, 4 bytes per document). The boundaries used most recently are kept in memory: up to 64 MB, at 8 bytes per
document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from datakit.cache.lengths import starts_of
from datakit.cache.lru import LruCache
from datakit.cache.reader import Cache, open_cache
from datakit.errors import LoaderError, suggestion
from datakit.loader.sources.token_source import TokenSource, borders_touching

if TYPE_CHECKING:
    import tokenizers

CACHED_BYTES = 64 << 20  # enough for the boundaries of 8 M documents


class CacheSource:
    """The tokens of a cache, or of one of its sources or document buckets. The shards of a source are adjacent, as are
    those of a bucket, so they form one range of tokens. Raises LoaderError if the cache does not have the source or the
    bucket. The methods raise the same errors as the cache reader.
    """

    def __init__(self, cache: Cache, source: str | None = None) -> None:
        self.cache: Cache = cache
        self.url: str = cache.directory
        self.source: str | None = source
        self.has_loss_mask: bool = cache.has_loss_mask
        chosen = cache.shards_of(source)
        if not chosen:
            known = cache.part_names()
            raise LoaderError(f"{cache.directory} has no source {source!r}: {suggestion(source or '', known)}")
        self.shard_range: range = range(chosen[0].index, chosen[-1].index + 1)
        self._shards = [shard for shard in chosen if shard.tokens]
        self.start: int = chosen[0].token_start  # where the source starts in the cache
        self.tokens: int = chosen[-1].token_start + chosen[-1].tokens - self.start
        self._starts = np.array([shard.token_start - self.start for shard in self._shards], np.int64)
        self._cached = LruCache[int, np.ndarray](CACHED_BYTES, lambda borders: borders.nbytes)
        self.dtype: np.dtype = np.dtype(cache.contract.dtype)
        self.cache_identity: str = cache.manifest.identity
        name = f"{self.cache_identity}/{source or ''}"
        self.identity: str = self.cache_identity if source is None else xxhash.xxh3_128_hexdigest(name.encode())

    def __repr__(self) -> str:
        return f"CacheSource({self.url!r}, {self.source!r}: {self.tokens:,} tokens)"

    def __reduce__(self) -> tuple[Any, ...]:
        return open_source, (self.url, self.source)

    @property
    def requests(self) -> int:
        return self.cache.requests

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.cache.read(self.start + start, self.start + stop)

    def read_loss_mask(self, start: int, stop: int) -> np.ndarray:
        return self.cache.read_loss_mask(self.start + start, self.start + stop)

    def document_borders(self, start: int, stop: int) -> np.ndarray:
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        last = int(np.searchsorted(self._starts, stop, side="left"))
        parts = [
            self._starts[i]
            + borders_touching(self._borders(i), max(0, start - int(self._starts[i])), self._end(i, stop))
            for i in range(first, last)
        ]
        return parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))

    def spans_of(self, identity: str) -> list[tuple[int, int]]:
        """Return (start, stop) of each document of the source with this id; empty if there is none. Needs pyarrow."""
        spans = []
        for index, row in self.cache.find_all(identity, self.shard_range):
            starts, base = self.cache.document_starts(index), self.cache.shards[index].token_start - self.start
            spans.append((base + int(starts[row]), base + int(starts[row + 1])))
        return spans

    def _end(self, index: int, stop: int) -> int:
        return min(self._shards[index].tokens, stop - int(self._starts[index]))

    def _borders(self, index: int) -> np.ndarray:
        """Return the offsets in a shard at which nonempty documents start, and the offset where the last one ends."""

        def read() -> np.ndarray:
            lengths = self.cache.document_lengths(self._shards[index].index)
            return starts_of(lengths[lengths > 0])

        return self._cached.get(index, read)


def open_source(url: str, source: str | None = None) -> CacheSource:
    """Open a token cache, or one of its sources or document buckets (`source.bucket`). `url` is the cache's directory,
    or the directory of a dataset whose current cache is to be opened. Raises LoaderError if the cache does not have the
    source or the bucket, and the errors of `open_cache`.
    """
    return CacheSource(open_cache(url), source)


def shared_tokenizer(sources: Mapping[str, TokenSource]) -> tokenizers.Tokenizer:
    """Return the tokenizer that these components' caches share. Raises LoaderError if there is no such tokenizer."""
    caches = {name: source.cache for name, source in sources.items() if isinstance(source, CacheSource)}
    if len(caches) < len(sources):
        raise LoaderError(
            f"component {min(set(sources) - set(caches))!r} is not read from a cache, so it has no tokenizer"
        )
    if len({cache.contract.tokenizer_sha256 for cache in caches.values()}) > 1:
        listed = ", ".join(f"{name}: {cache.directory}" for name, cache in caches.items())
        raise LoaderError(
            f"the components have different tokenizers ({listed}); use loader.sources[name].cache.tokenizer"
        )
    return next(iter(caches.values())).tokenizer


def share_tokens(one: TokenSource, other: TokenSource) -> bool:
    """Return True if two sources are equal or overlap in one cache. Equal texts in two caches are not detected."""
    if isinstance(one, CacheSource) and isinstance(other, CacheSource) and one.cache_identity == other.cache_identity:
        first, second = one.shard_range, other.shard_range
        return max(first.start, second.start) < min(first.stop, second.stop)
    return one.identity == other.identity
