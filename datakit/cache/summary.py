"""Computes the figures that `datakit cache stats` shows: the number of documents in each range of lengths, the totals
of each source, and the most frequent tokens. The manifest holds all of these figures, except the most frequent tokens
of a cache imported by reference. For such a cache, all tokens are read and counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from datakit.cache.layout import FREQUENT, SourceSums, most_frequent
from datakit.cache.reader import Cache


@dataclass(frozen=True)
class BucketSums:
    """The totals of a document bucket."""

    shards: int
    rows: int
    tokens: int


@dataclass(frozen=True)
class CacheSummary:
    """Totals and distributions of a cache. lengths: for each range of lengths, its start, its end (exclusive) and the
    number of documents. frequent: pairs (id, count), the highest counts first. buckets: the totals of each document
    bucket, by the name that mixtures use.
    """

    directory: str
    documents: int
    tokens: int
    bytes: int
    dtype: str
    shards: int
    lengths: list[tuple[int, int, int]]
    sources: dict[str, SourceSums]
    frequent: list[tuple[int, int]]
    buckets: dict[str, BucketSums]


def summarize(cache: Cache) -> CacheSummary:
    details, totals = cache.details, cache.manifest.totals
    filled = sorted(int(power) for power in details.lengths)
    powers = [1 << place for place in range(filled[0].bit_length() - 1, filled[-1].bit_length())] if filled else []
    return CacheSummary(
        directory=cache.directory,
        documents=cache.documents_count,
        tokens=cache.tokens,
        bytes=totals.bytes,
        dtype=cache.contract.dtype.name,
        shards=len(cache.manifest.partitions),
        lengths=[(power // 2, power, details.lengths.get(str(power), 0)) for power in powers],
        sources=details.sources,
        frequent=[(number, count) for number, count in details.frequent] or counted(cache),
        buckets=_buckets(cache),
    )


def _buckets(cache: Cache) -> dict[str, BucketSums]:
    found = dict[str, BucketSums]()
    for shard in cache.shards:
        if shard.bucket is not None:
            sums = found.get(shard.part, BucketSums(0, 0, 0))
            found[shard.part] = BucketSums(sums.shards + 1, sums.rows + shard.rows, sums.tokens + shard.tokens)
    return found


def counted(cache: Cache, number: int = FREQUENT) -> list[tuple[int, int]]:
    """Read all tokens; return (id, count) for the `number` most frequent ones, by descending count, then by id."""
    counts = np.zeros(cache.contract.vocabulary_size, np.int64)
    for block in cache.blocks():
        counts += np.bincount(block, minlength=len(counts))
    return [(int(token), count) for token, count in most_frequent(counts, number).items()]
