"""Defines what a task reports about a shard that it wrote, and combines these reports into the manifest's length
histogram, list of most frequent tokens, and totals per source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

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
    bucket: str | None = None

    @property
    def partition(self) -> Partition:
        return msgspec.convert(self, Partition, from_attributes=True)


@dataclass
class _Sums:
    """The sums of one source. targets: the sum of all loss masks; without a mask, all tokens of a shard are targets."""

    shards: int = 0
    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    targets: int = 0
    has_masks: bool = False
    frequent: Counter[str] = field(default_factory=Counter)

    def add(self, shard: WrittenShard) -> None:
        mask = shard.files.loss_mask
        self.shards += 1
        self.documents += shard.rows
        self.tokens += shard.tokens
        self.text_bytes += shard.text_bytes or 0
        self.targets += mask.sum if mask else shard.tokens
        self.has_masks = self.has_masks or mask is not None
        self.frequent.update(shard.frequent)

    def sums(self) -> SourceSums:
        return SourceSums(
            shards=self.shards,
            documents=self.documents,
            tokens=self.tokens,
            text_bytes=self.text_bytes,
            targets=self.targets if self.has_masks else None,
            frequent=_most_frequent(self.frequent),
        )


def cache_details(shards: Iterable[WrittenShard], contract: Contract) -> CacheDetails:
    """Return the manifest's `details` for a cache that consists of these shards in this order. A report takes about 20
    KB, mostly for the frequent tokens, so only the part about the shard's files is kept. `shards` may be a generator.
    """
    files, lengths, sources = list[ShardFiles](), Counter[str](), dict[str, _Sums]()
    for shard in shards:
        files.append(shard.files)
        lengths.update(shard.lengths)
        sources.setdefault(shard.source, _Sums()).add(shard)
    return CacheDetails(
        format=FORMAT,
        contract=contract,
        array=array_form(contract.dtype),
        shards=files,
        sources={source: sums.sums() for source, sums in sources.items()},
        lengths={power: lengths[power] for power in sorted(lengths, key=int)},
        frequent=_most_frequent(added(sums.frequent for sums in sources.values())),
        loss_mask=array_form(np.dtype(np.uint8)) if any(sums.has_masks for sums in sources.values()) else None,
    )


def _most_frequent(counts: Counter[str]) -> list[tuple[int, int]]:
    ordered = sorted(((int(token), count) for token, count in counts.items()), key=lambda pair: (-pair[1], pair[0]))
    return ordered[:FREQUENT]
