"""The token cache as a TokenSource: all of it, or one of its sources.

    source = open_source("data/demo/tokenize-0123456789ab", "web")

Opening is one read of the manifest. Document borders come from the shards' files of lengths, each read whole (4 bytes a
document, one request) when it is first asked for and kept for the last shards, up to 64 MB: 8 bytes a document.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
import xxhash

from datakit.cache.lengths import starts_of
from datakit.cache.reader import Cache, open_cache
from datakit.errors import LoaderError, suggestion
from datakit.loader.sources.token_source import TokenSource, borders_touching

KEPT_BYTES = 64 << 20  # of document borders


class CacheSource:
    """See the module. One source's shards are neighbours in the cache, so its tokens are one range of it."""

    def __init__(self, cache: Cache, source: str | None = None) -> None:
        self.url, self.source = cache.directory, source
        self.has_loss_mask = cache.has_loss_mask
        self._cache = cache
        chosen = [shard for shard in cache.shards if source in (None, shard.source)]
        if not chosen:
            known = sorted({shard.source for shard in cache.shards})
            raise LoaderError(f"{cache.directory} has no source {source!r}: {suggestion(source or '', known)}")
        self._shards = [shard for shard in chosen if shard.tokens]
        self._start = chosen[0].token_start
        self.tokens = chosen[-1].token_start + chosen[-1].tokens - self._start
        self._begins = np.array([shard.token_start - self._start for shard in self._shards], np.int64)
        self._lists: OrderedDict[int, np.ndarray] = OrderedDict()
        self._listed = 0
        self._lock = threading.Lock()
        self.dtype = np.dtype(cache.contract.dtype)
        self.cache_identity = cache.manifest.identity
        name = f"{self.cache_identity}/{source or ''}"
        self.identity = self.cache_identity if source is None else xxhash.xxh3_128_hexdigest(name.encode())

    def __reduce__(self) -> tuple:
        return open_source, (self.url, self.source)

    @property
    def requests(self) -> int:
        """Reads of the disk or the store so far."""
        return self._cache.requests

    def read(self, start: int, stop: int) -> np.ndarray:
        return self._cache.read(self._start + start, self._start + stop)

    def read_loss_mask(self, start: int, stop: int) -> np.ndarray:
        return self._cache.read_loss_mask(self._start + start, self._start + stop)

    def document_borders(self, start: int, stop: int) -> np.ndarray:
        first = int(np.searchsorted(self._begins, start, side="right")) - 1
        last = int(np.searchsorted(self._begins, stop, side="left"))
        parts = [
            self._begins[i]
            + borders_touching(self._borders(i), max(0, start - int(self._begins[i])), self._end(i, stop))
            for i in range(first, last)
        ]
        return parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))

    def _end(self, index: int, stop: int) -> int:
        return min(self._shards[index].tokens, stop - int(self._begins[index]))

    def _borders(self, index: int) -> np.ndarray:
        """Where the documents of one shard begin, from 0, and where the last one ends; empty ones leave no border."""
        with self._lock:
            if index in self._lists:
                self._lists.move_to_end(index)
                return self._lists[index]
        lengths = self._cache.document_lengths(self._shards[index].index)
        borders = starts_of(lengths[lengths > 0])
        with self._lock:
            if index not in self._lists:
                self._lists[index] = borders
                self._listed += borders.nbytes
            while self._listed > KEPT_BYTES and len(self._lists) > 1:
                self._listed -= self._lists.popitem(last=False)[1].nbytes
        return borders


def open_source(url: str, source: str | None = None) -> CacheSource:
    """The token cache in directory `url`, or one of its sources."""
    return CacheSource(open_cache(url), source)


def share_tokens(one: TokenSource, other: TokenSource) -> bool:
    """Whether two sources have tokens in common, as far as their names tell: a text's copies elsewhere are not seen."""
    if isinstance(one, CacheSource) and isinstance(other, CacheSource) and one.cache_identity == other.cache_identity:
        return None in (one.source, other.source) or one.source == other.source
    return one.identity == other.identity
