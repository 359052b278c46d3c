"""The token cache as a TokenSource: all of it, or one of its sources.

    source = open_source("data/demo/tokenize-0123456789ab", "web")

Opening is one read of the manifest. Document borders come from the shards' lists of documents, read when they are first
asked for (whole, a shard's at a time) and kept for the last few shards: 8 bytes a document.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
import xxhash

from datakit.errors import LoaderError, suggestion
from datakit.loader.source import borders_touching
from datakit.tokenize.reader import Cache, Shard, open_cache

KEPT_LISTS = 32  # shards whose document borders stay in memory


class CacheSource:
    """See the module. One source's shards are neighbours in the cache, so its tokens are one range of it."""

    has_loss_mask = False

    def __init__(self, cache: Cache, source: str | None = None, shards_kept: int = KEPT_LISTS) -> None:
        self.url, self.source, self._kept = cache.directory, source, shards_kept
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
        self._lock = threading.Lock()
        self.dtype = np.dtype(cache.contract.dtype)
        name = f"{cache.manifest.identity}/{source or ''}"
        self.identity = cache.manifest.identity if source is None else xxhash.xxh3_128_hexdigest(name.encode())

    def __reduce__(self) -> tuple:
        return open_source, (self.url, self.source)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self._cache.read(self._start + start, self._start + stop)

    def read_loss_mask(self, start: int, stop: int) -> np.ndarray:
        raise LoaderError(f"{self.url} has no loss mask")

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
        borders = np.unique(document_starts(self._cache, self._shards[index]))
        with self._lock:
            self._lists[index] = borders
            if len(self._lists) > self._kept:
                self._lists.popitem(last=False)
        return borders


def document_starts(cache: Cache, shard: Shard) -> np.ndarray:
    """Where each document of a shard begins, from 0, and where the last one ends."""
    from datakit.storage import urls
    from datakit.tokenize.documents import read_documents  # needs pyarrow, which a run without documents may not have
    from datakit.tokenize.layout import DOCUMENTS_SUFFIX

    url = urls.join(cache.directory, shard.path) + DOCUMENTS_SUFFIX
    return read_documents(url, shard.rows, shard.tokens)[1]


def open_source(url: str, source: str | None = None) -> CacheSource:
    """The token cache in directory `url`, or one of its sources."""
    return CacheSource(open_cache(url), source)
