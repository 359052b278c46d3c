"""Defines what a task reports about a shard that it wrote, and combines these reports into the manifest's length
histogram, list of most frequent tokens, and totals per source.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from datakit.cache.contract import Contract
from datakit.cache.layout import FORMAT, FREQUENT, CacheDetails, ShardFiles, SourceSums, array_form
from datakit.engine.counts import added
from datakit.storage.manifest import Partition


class WrittenShard(msgspec.Struct, frozen=True):
    """One shard, as described by the task that wrote it.

    text_bytes: the size of the shard's text without quarantined documents; None if it is unknown. bytes, xxh3: the size
    and checksum of the data file. lengths: the number of documents in each range of lengths, from `length_histogram`.
    frequent: the count of each of the shard's most frequent tokens, keyed by id.
    """

    source: str
    text_bytes: int | None
    first_id: str | None
    last_id: str | None
    quarantined: int
    path: str
    rows: int
    tokens: int
    bytes: int
    xxh3: str
    lengths: dict[str, int]
    frequent: dict[str, int]
    files: ShardFiles

    @property
    def partition(self) -> Partition:
        return msgspec.convert(self, Partition, from_attributes=True)


def cache_details(shards: Sequence[WrittenShard], contract: Contract) -> CacheDetails:
    """Return the manifest's `details` for a cache that consists of these shards in this order."""
    lengths = added(shard.lengths for shard in shards)
    by_source: dict[str, list[WrittenShard]] = {}
    for shard in shards:
        by_source.setdefault(shard.source, []).append(shard)
    return CacheDetails(
        format=FORMAT,
        contract=contract,
        array=array_form(contract.dtype),
        shards=[shard.files for shard in shards],
        sources={source: _source_sums(group) for source, group in by_source.items()},
        lengths={power: lengths[power] for power in sorted(lengths, key=int)},
        frequent=_most_frequent(shards),
        loss_mask=array_form(np.dtype(np.uint8)) if any(shard.files.loss_mask for shard in shards) else None,
    )


def _source_sums(shards: Sequence[WrittenShard]) -> SourceSums:
    masks = [shard.files.loss_mask for shard in shards]
    targets = None
    if any(masks):
        targets = sum(mask.sum if mask else shard.tokens for mask, shard in zip(masks, shards, strict=True))
    return SourceSums(
        shards=len(shards),
        documents=sum(shard.rows for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
        text_bytes=sum(shard.text_bytes or 0 for shard in shards),
        targets=targets,
        frequent=_most_frequent(shards),
    )


def _most_frequent(shards: Sequence[WrittenShard]) -> list[tuple[int, int]]:
    counts = added(shard.frequent for shard in shards)
    ordered = sorted(((int(token), count) for token, count in counts.items()), key=lambda pair: (-pair[1], pair[0]))
    return ordered[:FREQUENT]
