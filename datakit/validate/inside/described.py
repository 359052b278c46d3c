"""Lists the files that a step's manifest describes, with their sizes and checksums, for every kind of step.

The files of a download whose source is read in place are not part of the step, and are not listed. The arrays of a
cache that was imported by reference lie in another program's directory; they are listed, because the cache depends on
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from datakit.cache.external_arrays import ExternalShards, array_directory, read_external
from datakit.cache.layout import (
    DATA_FILE,
    DOCUMENTS_SUFFIX,
    LOSS_MASK_SUFFIX,
    METADATA_FILE,
    TOKENIZER_FILE,
    CacheDetails,
    ShardFiles,
)
from datakit.cache.layout import REMEDY as CACHE_REMEDY
from datakit.cache.lengths import LENGTHS_SUFFIX, lengths_bytes
from datakit.storage import urls
from datakit.storage.manifest import Partition
from datakit.validate.finding import REMEDY
from datakit.validate.subject import DOWNLOAD, FOLDERS, Subject

TOKENIZER_REMEDY = "copy the tokenizer.json with which the cache was made, or make the cache again"
COPIED = "download/bytes"  # a counter that only downloads that copied their files have


@dataclass(frozen=True)
class DescribedFile:
    """A file that a manifest describes: its absolute URL, and either its size and xxh3-128 hash or its sha256 hash."""

    url: str
    bytes: int | None
    xxh3: str | None = None
    sha256: str | None = None
    remedy: str = REMEDY


def described_files(step: Subject) -> Iterator[DescribedFile]:
    """Yield every file that a step's manifest describes, apart from the manifest itself."""
    manifest = step.manifest
    if step.details is not None:
        yield from _cache_files(step, step.details)
    elif manifest.stage != DOWNLOAD or COPIED in manifest.counters or urls.listing(step.url(FOLDERS[DOWNLOAD])):
        for part in manifest.partitions:
            yield DescribedFile(step.place(part), part.bytes, part.xxh3)
    for file in manifest.files:
        yield DescribedFile(step.url(file.path), file.bytes, file.xxh3)


def _cache_files(step: Subject, details: CacheDetails) -> Iterator[DescribedFile]:
    sha256 = details.contract.tokenizer_sha256
    yield DescribedFile(step.url(TOKENIZER_FILE), None, sha256=sha256, remedy=TOKENIZER_REMEDY)
    external = read_external(step.directory, step.manifest)
    for partition, files in zip(step.manifest.partitions, details.shards, strict=True):
        place = step.url(partition.path)
        yield _own(place + DOCUMENTS_SUFFIX, files.documents_bytes, files.documents_xxh3)
        yield _own(place + LENGTHS_SUFFIX, lengths_bytes(partition.rows), files.lengths_xxh3)
        if external is None:
            yield from _arrays(place, partition, files)
    if external is not None:
        yield from _external_files(step.directory, external)


def _own(url: str, size: int, xxh3: str) -> DescribedFile:
    return DescribedFile(url, size, xxh3, remedy=CACHE_REMEDY)


def _arrays(place: str, partition: Partition, files: ShardFiles) -> Iterator[DescribedFile]:
    if partition.tokens:
        yield _own(urls.join(place, DATA_FILE), partition.bytes, partition.xxh3)
        yield _own(urls.join(place, METADATA_FILE), files.metadata_bytes, files.metadata_xxh3)
        if files.loss_mask is not None:
            mask, place = files.loss_mask, place + LOSS_MASK_SUFFIX
            yield _own(urls.join(place, DATA_FILE), mask.bytes, mask.xxh3)
            yield _own(urls.join(place, METADATA_FILE), mask.metadata_bytes, mask.metadata_xxh3)


def _external_files(directory: str, external: ExternalShards) -> Iterator[DescribedFile]:
    """Yield the files of each imported array once; several shards may lie in the same array."""
    seen = set[str]()
    for shard in external.shards:
        place = array_directory(directory, shard)
        if place not in seen:
            seen.add(place)
            yield from (_own(urls.join(place, file.path), file.bytes, file.xxh3) for file in shard.files)
