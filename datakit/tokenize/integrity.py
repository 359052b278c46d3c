"""What makes a cache be refused: a manifest that does not agree with itself, files that are not those it describes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import msgspec

from datakit.errors import CorruptError, NotFoundError, UsageError
from datakit.storage import atomic, urls
from datakit.storage.manifest import Manifest, Partition
from datakit.tokenize.contract import Contract
from datakit.tokenize.layout import (
    DATA_FILE,
    DOCUMENTS_SUFFIX,
    FORMAT,
    METADATA_FILE,
    STAGE,
    TOKENIZER_FILE,
    CacheDetails,
    ShardFiles,
)


def read_details(directory: str, manifest: Manifest) -> CacheDetails:
    """The manifest's part that is the cache's own, checked against the rest. Raises UsageError, CorruptError."""
    if manifest.stage != STAGE:
        raise UsageError(f"{directory} is the output of stage {manifest.stage!r}, not a token cache")
    form = manifest.details.get("format")
    if form is not None and form != FORMAT:
        raise CorruptError(f"{directory} has format {form!r}; this version reads {FORMAT!r}")
    try:
        details = msgspec.convert(manifest.details, CacheDetails)
    except msgspec.ValidationError as error:
        raise CorruptError(f"{directory}: its manifest describes no token cache: {error}") from error
    if not _sums_agree(manifest, details):
        raise CorruptError(f"{directory}: the sums in its manifest do not agree; it was altered, make the cache again")
    return details


def _sums_agree(manifest: Manifest, details: CacheDetails) -> bool:
    partitions, sources = manifest.partitions, details.sources.values()
    tokens = sum(partition.tokens or 0 for partition in partitions)
    rows = sum(partition.rows for partition in partitions)
    return (
        (tokens, rows) == (manifest.totals.tokens, manifest.totals.rows)
        and (tokens, rows) == (sum(entry.tokens for entry in sources), sum(entry.documents for entry in sources))
        and rows == sum(details.lengths.values())
        and len(partitions) == len(details.shards)
        and details.contract.dtype.name == details.array.dtype
    )


def check_files(
    directory: str, contract: Contract, partitions: Sequence[Partition], shards: Sequence[ShardFiles]
) -> int:
    """Read every file of a cache and compare size and checksum; the bytes read. Raises CorruptError."""
    total = _check_tokenizer(urls.join(directory, TOKENIZER_FILE), contract)
    for partition, files in zip(partitions, shards, strict=True):
        for path, size, xxh3 in _files(partition, files):
            total += _check(urls.join(directory, path), size, xxh3)
    return total


def _files(partition: Partition, files: ShardFiles) -> Iterator[tuple[str, int, str]]:
    if partition.tokens:
        yield f"{partition.path}/{DATA_FILE}", partition.bytes, partition.xxh3
        yield f"{partition.path}/{METADATA_FILE}", files.metadata_bytes, files.metadata_xxh3
    yield partition.path + DOCUMENTS_SUFFIX, files.documents_bytes, files.documents_xxh3


def _check(url: str, size: int, xxh3: str) -> int:
    try:
        found, found_size = atomic.hash_url(url)
    except NotFoundError as error:
        raise CorruptError(f"{url}, {size} bytes in the manifest, is missing; make the cache again") from error
    if (found, found_size) != (xxh3, size):
        raise CorruptError(
            f"{url} is not what was written: {found_size} bytes, xxh3 {found}; the manifest says {size} bytes, "
            f"xxh3 {xxh3}. Remove the cache's directory and make it again"
        )
    return size


def _check_tokenizer(url: str, contract: Contract) -> int:
    try:
        data = urls.read_bytes(url)
    except NotFoundError as error:
        raise CorruptError(f"{url} is missing; make the cache again") from error
    found = hashlib.sha256(data).hexdigest()
    if found != contract.tokenizer_sha256:
        raise CorruptError(f"{url} has sha256 {found}; the cache was made with {contract.tokenizer_sha256}")
    return len(data)
